// SPDX-License-Identifier: Apache-2.0
#include "torch/device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/errors.h"
#include "torch/arena.h"

namespace penstock {
namespace {

using Variables = std::map<std::string, const char*>;

int card(std::optional<int> wanted, int count, const Variables& variables) {
  return chosen_card(wanted, count, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
}

TEST(Cards, OneThatIsNamedIsTaken) {
  EXPECT_EQ(card(1, 2, {{"LOCAL_RANK", "0"}}), 1);
  EXPECT_EQ(test::message_of([] { card(3, 2, {}); }),
            "there is no cuda:3; this process sees 2 CUDA devices\n  hint: they are numbered from 0, as CUDA_VISIBLE_DEVICES orders them");
}

TEST(Cards, EachProcessOfAHostHasItsOwn) {
  EXPECT_EQ(card({}, 4, {}), 0);
  EXPECT_EQ(card({}, 4, {{"LOCAL_RANK", "2"}, {"SLURM_LOCALID", "1"}}), 2);
  EXPECT_EQ(card({}, 4, {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}), 3);
  EXPECT_EQ(card({}, 4, {{"SLURM_LOCALID", "1"}}), 1);
  EXPECT_EQ(test::message_of([] { card({}, 1, {{"LOCAL_RANK", "1"}}); }),
            "there is no cuda:1; this process sees 1 CUDA device\n"
            "  hint: each process has the card of its number on this host: start fewer, or name one: --device cuda:0");
  EXPECT_EQ(test::message_of([] { card({}, 1, {{"LOCAL_RANK", "one"}}); }),
            "environment variable LOCAL_RANK is \"one\"\n  expected a number from 0 to 1048576");
}

// A launcher that lets each process see one card has chosen already.
TEST(Cards, TheOnlyOneThatAProcessIsLetSeeIsItsOwn) {
  EXPECT_EQ(card({}, 1, {{"SLURM_LOCALID", "3"}, {"CUDA_VISIBLE_DEVICES", "3"}}), 0);
  EXPECT_EQ(card({}, 2, {{"LOCAL_RANK", "1"}, {"CUDA_VISIBLE_DEVICES", "2,3"}}), 1);
}

TEST(Cards, ADeviceThatThereIsNot) {
  EXPECT_EQ(test::message_of([] { open_device("tpu"); }), "there is no device \"tpu\"\n  hint: cpu, cuda, standin, or one card: cuda:1");
}

TEST(Cards, AnArenaIsNoPartOfWhatKernelsTook) {
  const c10::Device standin = open_device("standin");
  const DeviceFunctions& functions = *functions_of(standin);
  const DeviceMemory before = functions.memory(standin);
  functions.reset_peak(standin);
  const std::int64_t base = functions.peak(standin);
  const Arena arena(1 << 20, standin);
  EXPECT_EQ(functions.memory(standin).free, before.free - (1 << 20));
  EXPECT_EQ(functions.peak(standin), base);
  {
    const c10::DataPtr taken = c10::GetAllocator(standin.type())->allocate(3000);
  }
  EXPECT_EQ(functions.peak(standin), base + 3072) << "in whole grains of 512 bytes";
  functions.reset_peak(standin);
  EXPECT_EQ(functions.peak(standin), base);
}

// The stand-in gives whole pages of large blocks back to the system, which clears them.
TEST(Cards, MemoryThatIsGivenBackTakesNothingFromItsNeighbour) {
  const c10::Device standin = open_device("standin");
  std::vector<at::Tensor> large, small;
  for (int i = 0; i < 16; ++i) {
    large.push_back(at::empty({(1 << 20) + 512}, at::TensorOptions(at::kByte).device(standin)));
    small.push_back(at::full({512}, 7, at::TensorOptions(at::kByte).device(standin)));
  }
  synchronise(standin);
  large.clear();
  for (const at::Tensor& kept : small) EXPECT_TRUE(kept.cpu().eq(7).all().item<bool>());
}

TEST(Cards, ArenasWithoutRoomAreRefusedWithWhatIsFree) {
  const c10::Device standin = open_device("standin");
  const DeviceMemory memory = functions_of(standin)->memory(standin);
  EXPECT_EQ(test::message_of([&] { check_free(memory.free, standin); }), "no error");
  const std::string message = test::message_of([&] { check_free(memory.total + 1, standin); });
  EXPECT_TRUE(message.starts_with("the program plans 64.0 GiB on standin:0, of whose 64.0 GiB ")) << message;
  EXPECT_TRUE(message.ends_with(" are free\n  hint: a smaller model or batch, more micro-batches, or --recompute inputs")) << message;
}

}  // namespace
}  // namespace penstock
