// SPDX-License-Identifier: Apache-2.0
#include "program/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "base/text.h"
#include "program/samples.h"
#include "program/verify.h"
#include "support/golden.h"
#include "support/rounds.h"

namespace penstock {
namespace {

// One device whose slots live over random spans: about `live` of them at a time.
Program random_lifetimes(std::uint64_t seed, std::size_t slots, std::size_t live) {
  std::mt19937_64 random(seed);
  Program program;
  program.name = "lifetimes";
  program.data.push_back({"x", {DType::f32, {16}}, false});
  DeviceProgram& device = program.devices.emplace_back();
  std::vector<SlotId> alive;
  const auto end = [&](std::size_t which) {
    Instruction i;
    i.opcode = Opcode::free;
    i.slot = alive[which];
    device.instructions.push_back(i);
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (std::size_t s = 0; s < slots; ++s) {
    if (alive.size() >= live) end(random() % alive.size());
    // Few different sizes, as in real programs, or any size, over two orders of magnitude.
    const std::int64_t size = seed % 2 == 0 ? std::int64_t{16} << random() % 8 : static_cast<std::int64_t>(16 + random() % 2048);
    device.slots.push_back({concat("s", s), SlotClass::step, {{DType::f32, {size}}}, {}, -1});
    Instruction i;
    i.opcode = Opcode::input;
    i.port = 0;
    i.slot = SlotId(static_cast<std::int64_t>(s));
    device.instructions.push_back(i);
    alive.push_back(i.slot);
  }
  while (!alive.empty()) end(alive.size() - 1);
  return program;
}

std::int64_t most_live_bytes(const DeviceProgram& device) {
  std::int64_t live = 0, most = 0;
  for (const Instruction& i : device.instructions) {
    const std::int64_t bytes = slot_bytes(device.slots[i.slot.index()]);
    live += i.opcode == Opcode::free ? -bytes : bytes;
    most = std::max(most, live);
  }
  return most;
}

// No two slots share a byte at a time. Directly: one owner per 64 bytes of the arena.
void expect_no_overlap(const DeviceProgram& device) {
  std::vector<int> owner(static_cast<std::size_t>(device.step_bytes / kAlignment), -1);
  for (const Instruction& i : device.instructions) {
    const Slot& slot = device.slots[i.slot.index()];
    for (std::int64_t b = slot.offset / kAlignment; b < (slot.offset + slot_bytes(slot)) / kAlignment; ++b) {
      int& at = owner[static_cast<std::size_t>(b)];
      ASSERT_EQ(at, i.opcode == Opcode::free ? i.slot.value : -1);
      at = i.opcode == Opcode::free ? -1 : i.slot.value;
    }
  }
}

TEST(MemoryPlan, RandomLifetimesFitTightly) {
  double worst = 0, sum = 0;
  const int programs = test::rounds(200);
  for (int seed = 0; seed < programs; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Program program = random_lifetimes(seed, 400, 4 + seed % 40);
    plan_memory(program);
    expect_no_overlap(program.devices[0]);
    const double ratio = static_cast<double>(program.devices[0].step_bytes) / static_cast<double>(most_live_bytes(program.devices[0]));
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  RecordProperty("mean_ratio", std::to_string(sum / programs));
  RecordProperty("worst_ratio", std::to_string(worst));
  EXPECT_LE(worst, 1.3) << "mean " << sum / programs;
}

TEST(MemoryPlan, TimeIsNearlyLinear) {
  const auto seconds = [](std::size_t slots) {
    Program program = random_lifetimes(1, slots, 100);
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::clock_t begin = std::clock();  // of this process, so that other load does not count
      plan_memory(program);
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  EXPECT_LT(seconds(32000), 8 * 4 * seconds(4000));  // quadratic would be 64 times
}

TEST(MemoryPlan, FreedMemoryIsUsedAgain) {
  Program program = parse_program(test::two_devices());
  plan_memory(program);
  EXPECT_EQ(program.devices[0].state_bytes, 1024);
  EXPECT_EQ(program.devices[0].step_bytes, 384);
  EXPECT_EQ(program.devices[0].slots[1].offset, program.devices[0].slots[3].offset);  // %x1 takes %x0's place
  EXPECT_EQ(program.devices[1].step_bytes, 320);
  verify(program);
}

std::vector<std::int64_t> scratch_offsets(const std::string& graph, std::int64_t bytes) {
  const ScratchPlan plan = plan_scratch(parse_graph("penstock graph 1\n" + graph));
  EXPECT_EQ(plan.bytes, bytes);
  return plan.offsets;
}

TEST(ScratchPlan, PlacesAreTakenAgainAfterTheLastReader) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,16]) {\n"
                            "  %0: f32[16,16] = mm(%x, %x)\n"
                            "  %1: f32[16,16] = mm(%0, %x)\n"
                            "  %2: f32[16,16] = mm(%1, %x)\n"
                            "  %3: f32[16,16] = mm(%2, %x)\n"
                            "  return %3\n}\n",
                            2048),
            (std::vector<std::int64_t>{-1, 0, 1024, 0, -1}));
}

TEST(ScratchPlan, ViewsKeepTheirBaseAlive) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,16]) {\n"
                            "  %0: f32[16,16] = mm(%x, %x)\n"
                            "  %1: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
                            "  %2: f32[16,16] = mm(%x, %x)\n"
                            "  %3: f32[16,16] = mm(%1, %2)\n"
                            "  return %3\n}\n",
                            2048),
            (std::vector<std::int64_t>{-1, 0, -1, 1024, -1}));
}

TEST(ScratchPlan, OutputsThatAreViewsAreCopiedAtTheEnd) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,16], f32[16,16]) {\n"
                            "  %0: f32[16,16] = mm(%x, %x)\n"
                            "  %1: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
                            "  %2: f32[16,16] = mm(%x, %x)\n"
                            "  return %1, %2\n}\n",
                            1024),
            (std::vector<std::int64_t>{-1, 0, -1, -1}));
}

TEST(ScratchPlan, ElementwiseOpsWriteOverADyingOperand) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,16]) {\n"
                            "  %0: f32[16,16] = mm(%x, %x)\n"
                            "  %1: f32[16,16] = add(%0, %x)\n"
                            "  %2: f32[16,16] = mm(%1, %x)\n"
                            "  return %2\n}\n",
                            1024),
            (std::vector<std::int64_t>{-1, 0, 0, -1}));
}

TEST(ScratchPlan, AnNarySumWritesOverItsFirstOperandsOnly) {
  const std::string graph =
      "graph @g(%x: f32[16,16]) -> (f32[16,16]) {\n"
      "  %0: f32[16,16] = mm(%x, %x)\n"
      "  %1: f32[16,16] = add_n(OPERANDS)\n"
      "  %2: f32[16,16] = mm(%1, %x)\n"
      "  return %2\n}\n";
  const auto with = [&](const std::string& operands) {
    std::string text = graph;
    return text.replace(text.find("OPERANDS"), 8, operands);
  };
  EXPECT_EQ(scratch_offsets(with("%x, %0, %x"), 1024), (std::vector<std::int64_t>{-1, 0, 0, -1}));
  EXPECT_EQ(scratch_offsets(with("%x, %x, %0"), 2048), (std::vector<std::int64_t>{-1, 0, 1024, -1}));
}

TEST(ScratchPlan, ButNotOverWhatAnotherOperandReadsInAnotherOrder) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,16]) {\n"
                            "  %0: f32[16,16] = mm(%x, %x)\n"
                            "  %1: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
                            "  %2: f32[16,16] = add(%0, %1)\n"
                            "  %3: f32[16,16] = mm(%2, %x)\n"
                            "  return %3\n}\n",
                            2048),
            (std::vector<std::int64_t>{-1, 0, -1, 1024, -1}));
}

TEST(ScratchPlan, AReshapeOfATransposeIsACopy) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[256]) {\n"
                            "  %0: f32[16,16] = gelu(%x)\n"
                            "  %1: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
                            "  %2: f32[256] = reshape(%1) {shape=[256]}\n"
                            "  %3: f32[256] = gelu(%2)\n"
                            "  %4: f32[256] = add(%3, %3)\n"
                            "  return %4\n}\n",
                            2048),
            (std::vector<std::int64_t>{-1, 0, -1, 1024, 1024, -1}));
}

TEST(ScratchPlan, AReshapeOfATransposeThatOnlySplitsDimsIsAView) {
  EXPECT_EQ(scratch_offsets("graph @g(%x: f32[16,16]) -> (f32[16,4,4]) {\n"
                            "  %0: f32[16,16] = gelu(%x)\n"
                            "  %1: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
                            "  %2: f32[16,4,4] = reshape(%1) {shape=[16, 4, 4]}\n"
                            "  %3: f32[16,4,4] = gelu(%2)\n"
                            "  %4: f32[16,4,4] = add(%3, %3)\n"
                            "  return %4\n}\n",
                            2048),
            (std::vector<std::int64_t>{-1, 0, -1, -1, 1024, -1}));
}

// The reshape is a copy, and so is the cat; both products lie in the cat's result from the first of them on.
TEST(ScratchPlan, WhatIsOnlyCopiedIsComputedWhereTheCopyLies) {
  const std::string graph =
      "graph @g(%x: f32[16,16]) -> (f32[512,1], f32[16,16]) {\n"
      "  %0: f32[16,16] = mm(%x, %x)\n"
      "  %1: f32[16,16] = MAKER\n"
      "  %2: f32[16,16] = transpose(%0) {dim0=0, dim1=1}\n"
      "  %3: f32[256] = reshape(%2) {shape=[256]}\n"
      "  %4: f32[256] = reshape(%1) {shape=[256]}\n"
      "  %5: f32[512] = cat(%3, %4) {dim=0}\n"
      "  %6: f32[512] = gelu(%5)\n"
      "  %7: f32[512,1] = reshape(%6) {shape=[512, 1]}\n"
      "  %8: f32[512,1] = gelu(%7)\n"
      "  %9: f32[16,16] = gelu(READ)\n"
      "  return %8, %9\n}\n";
  const auto with = [&](const std::string& maker, const std::string& read) {
    std::string text = graph;
    text.replace(text.find("MAKER"), 5, maker);
    return text.replace(text.find("READ"), 4, read);
  };
  EXPECT_EQ(scratch_offsets(with("mm(%x, %x)", "%x"), 2048), (std::vector<std::int64_t>{-1, -1, -1, -1, -1, -1, 0, 0, -1, -1, -1}));
  // A value that is read elsewhere, and one whose op writes dense results alone, leave the cat to copy all.
  for (const auto& text : {with("mm(%x, %x)", "%1"), with("tanh(%x)", "%x")}) {
    const ScratchPlan plan = plan_scratch(parse_graph("penstock graph 1\n" + text));
    EXPECT_FALSE(plan.parts[5] || plan.parts[2]) << text;
    EXPECT_GE(plan.offsets[2], 0) << text;
  }
}

}  // namespace
}  // namespace penstock
