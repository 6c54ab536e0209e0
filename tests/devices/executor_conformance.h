// What every Executor must do with state, memory and copies, without knowing its kernels; a test file instantiates it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/executor.h"

namespace penstock::test {

struct ExecutorCase {
  std::string name;
  std::function<std::unique_ptr<Executor>()> make;
};

class ExecutorConformance : public testing::TestWithParam<ExecutorCase> {};

inline std::shared_ptr<const Program> program_of(const std::string& device) {
  return std::make_shared<const Program>(parse_program("penstock program 1\nprogram @p {microbatches=1}\n" + device));
}

inline void fill(std::span<std::byte> memory, int value) {
  std::fill(memory.begin(), memory.end(), static_cast<std::byte>(value));
}
inline bool all(std::span<const std::byte> memory, int value) {
  return std::all_of(memory.begin(), memory.end(), [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

TEST_P(ExecutorConformance, MemoryIsAlignedAndApart) {
  auto executor = GetParam().make();
  executor->load(program_of("device 0 {state_bytes=64, step_bytes=192, scratch_bytes=0}\n"
                            "  slot %a step @0 (i64[9])\n  slot %b step @128 (f32[4])\n  slot %w state @0 (f32[4] \"w\")\n"),
                 0);
  for (int slot = 0; slot < 3; ++slot) fill(executor->memory(SlotId(slot)), slot + 1);
  const std::size_t sizes[] = {128, 64, 64};
  for (int slot = 0; slot < 3; ++slot) {
    const auto memory = executor->memory(SlotId(slot));
    EXPECT_EQ(memory.size(), sizes[slot]);
    EXPECT_TRUE(all(memory, slot + 1)) << slot;
  }
}

TEST_P(ExecutorConformance, NewStateIsZeroAndOldStateOutlivesPrograms) {
  auto executor = GetParam().make();
  const auto first = program_of(
      "device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}\n"
      "  slot %s state @0 (f32[16] \"w\", f32[16] \"m\")\n");
  const auto second = program_of(
      "device 0 {state_bytes=192, step_bytes=0, scratch_bytes=0}\n"
      "  slot %x state @0 (f32[16] \"v\")\n  slot %c copy @64 (f32[16] \"u\")\n  slot %s state @128 (f32[16] \"w\")\n");
  executor->load(first, 0);
  EXPECT_TRUE(all(executor->memory(SlotId(0)), 0));
  fill(executor->memory(SlotId(0)).first(64), 1);
  fill(executor->memory(SlotId(0)).subspan(64), 2);
  executor->load(second, 0);
  EXPECT_TRUE(all(executor->memory(SlotId(0)), 0));
  EXPECT_TRUE(all(executor->memory(SlotId(1)), 0));
  EXPECT_TRUE(all(executor->memory(SlotId(2)), 1));
  fill(executor->memory(SlotId(1)), 4);
  fill(executor->memory(SlotId(2)), 3);
  executor->load(first, 0);
  EXPECT_TRUE(all(executor->memory(SlotId(0)).first(64), 3));
  EXPECT_TRUE(all(executor->memory(SlotId(0)).subspan(64), 2));
  executor->load(second, 0);
  EXPECT_TRUE(all(executor->memory(SlotId(1)), 4));
}

TEST_P(ExecutorConformance, CopiesInOrder) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=192, scratch_bytes=0}\n"
      "  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[16])\n  slot %c step @128 (f32[16])\n"
      "  copy %a -> store %b\n  copy %b -> store %c\n");
  executor->load(program, 0);
  fill(executor->memory(SlotId(0)), 7);
  Event last = kNoEvent;
  for (const Instruction& instruction : program->devices[0].instructions) last = executor->issue(instruction);
  if (last != kNoEvent) {
    ASSERT_TRUE(executor->wait(last, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    EXPECT_TRUE(executor->done(last));
  }
  EXPECT_TRUE(all(executor->memory(SlotId(2)), 7));
}

// Host copies follow one another, so a reload need not wait for its offload.
TEST_P(ExecutorConformance, CopiesOverTheHostInOrder) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0, host_bytes=128}\n"
      "  slot %a step @0 (f32[16])\n  slot %g host @0 (f32[16])\n  slot %h host @64 (f32[16])\n  slot %b step @64 (f32[16])\n"
      "  offload %a -> %h\n  reload %h -> %b\n");
  executor->load(program, 0);
  for (int slot = 0; slot < 4; ++slot) fill(executor->memory(SlotId(slot)), slot + 1);
  Event last = kNoEvent;
  for (const Instruction& instruction : program->devices[0].instructions) last = executor->issue(instruction);
  if (last != kNoEvent) {
    ASSERT_TRUE(executor->wait(last, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    EXPECT_TRUE(executor->done(last));
  }
  EXPECT_TRUE(all(executor->memory(SlotId(1)), 2));
  EXPECT_TRUE(all(executor->memory(SlotId(2)), 1));
  EXPECT_TRUE(all(executor->memory(SlotId(3)), 1));
}

inline std::string executor_case_name(const testing::TestParamInfo<ExecutorCase>& info) {
  return info.param.name;
}

}  // namespace penstock::test
