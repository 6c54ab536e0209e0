// SPDX-License-Identifier: Apache-2.0
#include "driver/memory_check.h"

#include <gtest/gtest.h>

#include "models/support.h"
#include "penstock/compile.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Program program() {
  Program out;
  out.name = "training";
  out.devices.resize(2);
  out.devices[0].state_bytes = 3 << 20;
  out.devices[0].step_bytes = 1 << 20;
  out.devices[1].state_bytes = 1 << 20;
  out.devices[1].host_bytes = 1 << 20;
  return out;
}

std::string verdict(std::size_t devices, std::int64_t held, std::int64_t room) {
  return message_of([&] { check_room(program(), devices, {held, 0}, {{room, "this machine's free memory"}}); });
}

TEST(MemoryCheck, SaysWhatEachDevicePlansAndWhatThereIs) {
  EXPECT_EQ(verdict(2, 0, 5 << 20),
            "program training needs 6.0 MiB of memory; this machine's free memory is 5.0 MiB\n"
            "  device 0 plans 4.0 MiB: state 3.0 MiB, a step's tensors 1.0 MiB, kernels' own 0 B\n"
            "  device 1 plans 1.0 MiB: state 1.0 MiB, a step's tensors 0 B, kernels' own 0 B; and 1.0 MiB on the host\n"
            "  hint: a smaller model or batch, more micro-batches, --recompute inputs, or more machines (--backend gloo)");
  EXPECT_EQ(verdict(2, 0, 6 << 20), "no error");
}

TEST(MemoryCheck, CountsOnlyWhatIsNewAndHere) {
  EXPECT_EQ(verdict(2, 2 << 20, 4 << 20), "no error");
  EXPECT_EQ(verdict(1, 0, 4 << 20), "no error");
  EXPECT_EQ(verdict(2, 0, -1), "no error");  // not known
}

// Devices with a memory of their own plan 5 MiB there together, and 1 MiB on the host.
TEST(MemoryCheck, LooksAtTheDevicesOwnMemory) {
  const auto on_a_card = [](std::int64_t free, std::int64_t on_host, std::int64_t held = 0) {
    const Rooms rooms = {{on_host, "this machine's free memory"}, MemoryRoom{free, "what is free of cuda:0's 8.0 MiB", 8 << 20}};
    return message_of([&] { check_room(program(), 2, {held, 0}, rooms); });
  };
  EXPECT_EQ(on_a_card(5 << 20, 1 << 20), "no error");
  EXPECT_EQ(on_a_card(2 << 20, 1 << 20, 3 << 20), "no error");
  EXPECT_EQ(on_a_card(4 << 20, 1 << 20),
            "program training needs 5.0 MiB of memory; what is free of cuda:0's 8.0 MiB is 4.0 MiB\n"
            "  device 0 plans 4.0 MiB: state 3.0 MiB, a step's tensors 1.0 MiB, kernels' own 0 B\n"
            "  device 1 plans 1.0 MiB: state 1.0 MiB, a step's tensors 0 B, kernels' own 0 B; and 1.0 MiB on the host\n"
            "  hint: something else holds the rest: another process, or other work of this one");
  EXPECT_TRUE(on_a_card(5 << 20, 1 << 19).starts_with("program training needs 1.0 MiB of memory; this machine's free memory is 512.0 KiB"));
  EXPECT_EQ(message_of([] { check_room(program(), 2, {}, {{1 << 20, ""}, MemoryRoom()}); }), "no error");  // each device looks at its own
}

// The fullest device, and of its tensors the largest: the value, the op that makes it, and the rule.
TEST(MemoryCheck, SaysWhatIsLargestWhereALimitIsPassed) {
  const auto mlp = test::model("mlp", {{"width", 32}, {"layers", 2}, {"context", 16}, {"vocabulary", 64}});
  const Program compiled = compile(training_step(*mlp, {4, 16, 2}, {}), make_schedule("gpipe", {.actors = 1, .microbatches = 2}));
  EXPECT_EQ(message_of([&] { check_limit(compiled, 1 << 20); }), "no error");
  EXPECT_EQ(message_of([&] { check_limit(compiled, 10000); }),
            "device 0 needs 135.6 KiB; the limit is 9.8 KiB\n"
            "  state 61.2 KiB, a step's tensors 53.7 KiB, kernels' own 20.8 KiB\n"
            "  it holds f32[64,32] (8.0 KiB), state \"embedding.weight\"\n"
            "  it holds f32[64,32] (8.0 KiB), state \"layers.1.weight\"\n"
            "  it holds f32[2,16,64] (8.0 KiB), made by linear of layers.1 in task F0\n"
            "  hint: split more: a larger --mesh tensor= or context=, --set layout.sequence=tensor, zero=1; or --recompute inputs");
}

}  // namespace
}  // namespace penstock
