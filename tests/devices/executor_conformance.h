// SPDX-License-Identifier: Apache-2.0
// Every Executor must pass these tests of state, memory and copies, which do not know its kernels; a test file instantiates them.
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

inline bool completes(Executor& executor, Event event) {
  return event == kNoEvent || (executor.wait(event, std::chrono::steady_clock::now() + std::chrono::seconds(20)) && executor.done(event));
}

// Writes `bytes` bytes of this value, and looks whether they are there.
inline void fill(Executor& executor, int slot, int value, std::size_t bytes, std::size_t offset = 0) {
  std::vector<std::byte> from(bytes, static_cast<std::byte>(value));
  EXPECT_TRUE(completes(executor, executor.write(SlotId(slot), offset, from)));
  std::ranges::fill(from, std::byte{0xEE});  // nobody wants them any more
}
inline bool all(Executor& executor, int slot, int value, std::size_t bytes, std::size_t offset = 0) {
  std::vector<std::byte> to(bytes, std::byte{0xEE});
  return completes(executor, executor.read(SlotId(slot), offset, to)) && to == std::vector(bytes, static_cast<std::byte>(value));
}

TEST_P(ExecutorConformance, MemoryIsAlignedAndApart) {
  auto executor = GetParam().make();
  executor->load(program_of("device 0 {state_bytes=64, step_bytes=192, scratch_bytes=0}\n"
                            "  slot %a step @0 (i64[9])\n  slot %b step @128 (f32[4])\n  slot %w state @0 (f32[4] \"w\")\n"),
                 0);
  const std::size_t sizes[] = {128, 64, 64};
  for (int slot = 0; slot < 3; ++slot) fill(*executor, slot, slot + 1, sizes[slot]);
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(executor->address(SlotId(slot)).size(), sizes[slot]);
    EXPECT_TRUE(all(*executor, slot, slot + 1, sizes[slot])) << slot;
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
  EXPECT_TRUE(all(*executor, 0, 0, 128));
  fill(*executor, 0, 1, 64);
  fill(*executor, 0, 2, 64, 64);
  executor->load(second, 0);
  EXPECT_TRUE(all(*executor, 0, 0, 64));
  EXPECT_TRUE(all(*executor, 1, 0, 64));
  EXPECT_TRUE(all(*executor, 2, 1, 64));
  fill(*executor, 1, 4, 64);
  fill(*executor, 2, 3, 64);
  executor->load(first, 0);
  EXPECT_TRUE(all(*executor, 0, 3, 64));
  EXPECT_TRUE(all(*executor, 0, 2, 64, 64));
  executor->load(second, 0);
  EXPECT_TRUE(all(*executor, 1, 4, 64));
}

TEST_P(ExecutorConformance, CopiesInOrder) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=192, scratch_bytes=0}\n"
      "  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[16])\n  slot %c step @128 (f32[16])\n"
      "  copy %a -> store %b\n  copy %b -> store %c\n");
  executor->load(program, 0);
  fill(*executor, 0, 7, 64);
  Event last = kNoEvent;
  for (const Instruction& instruction : program->devices[0].instructions) last = executor->issue(instruction);
  ASSERT_TRUE(completes(*executor, last));
  EXPECT_TRUE(all(*executor, 2, 7, 64));
}

// Host copies follow one another, so a reload need not wait for its offload.
TEST_P(ExecutorConformance, CopiesOverTheHostInOrder) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0, host_bytes=128}\n"
      "  slot %a step @0 (f32[16])\n  slot %g host @0 (f32[16])\n  slot %h host @64 (f32[16])\n  slot %b step @64 (f32[16])\n"
      "  offload %a -> %h\n  reload %h -> %b\n");
  executor->load(program, 0);
  for (int slot = 0; slot < 4; ++slot) fill(*executor, slot, slot + 1, 64);
  Event last = kNoEvent;
  for (const Instruction& instruction : program->devices[0].instructions) last = executor->issue(instruction);
  ASSERT_TRUE(completes(*executor, last));
  EXPECT_TRUE(all(*executor, 1, 2, 64));
  EXPECT_TRUE(all(*executor, 2, 1, 64));
  EXPECT_TRUE(all(*executor, 3, 1, 64));
}

// Also where the device's own memory is not the host's.
TEST_P(ExecutorConformance, SnapshotsOutliveProgramsInTheHostsMemory) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0, host_bytes=0, snapshot_bytes=128}\n"
      "  slot %w state @0 (f32[16] \"w\")\n  slot %other snapshot @0 (f32[16] \"snapshot1:w\")\n"
      "  slot %s snapshot @64 (f32[16] \"snapshot0:w\")\n"
      "  offload %w -> update %s\n  reload %s -> update %w\n");
  const auto without = program_of(
      "device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}\n"
      "  slot %v state @0 (f32[16] \"v\")\n");
  const auto holds = [&](const std::string& name, int value) {
    const SharedTensor found = executor->state(name);
    return found.memory && found.type == TensorType{DType::f32, {16}} &&
           std::ranges::count(std::span(found.memory.get(), 64), static_cast<std::byte>(value)) == 64;
  };
  executor->load(program, 0);
  EXPECT_TRUE(holds("snapshot0:w", 0));
  fill(*executor, 0, 5, 64);
  ASSERT_TRUE(completes(*executor, executor->issue(program->devices[0].instructions[0])));
  fill(*executor, 0, 7, 64);
  executor->load(without, 0);
  EXPECT_TRUE(holds("snapshot0:w", 5));
  executor->load(program, 0);
  EXPECT_TRUE(holds("snapshot0:w", 5) && holds("snapshot1:w", 0));
  EXPECT_TRUE(all(*executor, 2, 5, 64));
  ASSERT_TRUE(completes(*executor, executor->issue(program->devices[0].instructions[1])));
  EXPECT_TRUE(all(*executor, 0, 5, 64));
}

// What is read is what the compute lane wrote before, and it is read before what is written after.
TEST_P(ExecutorConformance, ReadsAndWritesKeepTheComputeLanesOrder) {
  auto executor = GetParam().make();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0}\n"
      "  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[16])\n  copy %a -> store %b\n");
  executor->load(program, 0);
  std::vector<std::byte> first(64, std::byte{1}), second(64, std::byte{2}), got(64), later(64);
  const Instruction& copy = program->devices[0].instructions[0];
  executor->write(SlotId(0), 0, first);
  executor->issue(copy);
  executor->write(SlotId(0), 0, second);
  const Event read = executor->read(SlotId(1), 0, got);
  executor->issue(copy);
  const Event last = executor->read(SlotId(1), 0, later);
  ASSERT_TRUE(completes(*executor, read));
  EXPECT_EQ(got, first);
  ASSERT_TRUE(completes(*executor, last));
  EXPECT_EQ(later, second);
}

TEST_P(ExecutorConformance, AnAsynchronousExecutorHasLanesOfItsEvents) {
  auto executor = GetParam().make();
  ASSERT_TRUE(!executor->asynchronous() || executor->lanes() != nullptr);
  if (executor->lanes() == nullptr) return;
  DeviceLanes& lanes = *executor->lanes();
  const auto program = program_of(
      "device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0, host_bytes=64}\n"
      "  slot %a step @0 (f32[16])\n  slot %h host @0 (f32[16])\n  slot %b step @64 (f32[16])\n"
      "  offload %a -> %h\n  reload %h -> %b\n");
  executor->load(program, 0);
  for (int value = 1; value <= 20; ++value) {  // each lane waits for the other
    const std::vector<std::byte> bytes(64, static_cast<std::byte>(value));
    const Deadline later = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    lanes.after(DeviceLane::host_copy, executor->write(SlotId(0), 0, bytes), later);
    executor->issue(program->devices[0].instructions[0]);
    lanes.after(DeviceLane::compute, executor->issue(program->devices[0].instructions[1]), later);
    std::vector<std::byte> got(64);
    const Event read = executor->read(SlotId(2), 0, got), here = lanes.record(DeviceLane::compute);
    ASSERT_TRUE(lanes.wait(here, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    ASSERT_TRUE(completes(*executor, read));
    EXPECT_EQ(got, bytes);
  }
}

inline std::string executor_case_name(const testing::TestParamInfo<ExecutorCase>& info) {
  return info.param.name;
}

}  // namespace penstock::test
