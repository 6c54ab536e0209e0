// SPDX-License-Identifier: Apache-2.0
#include "profile/measured.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "support/paths.h"

namespace penstock {
namespace {

constexpr std::int64_t kMicrosecond = 1000;  // in ns

// A step of tests/golden/program/two_devices.txt in which device 1 began 2 us after device 0 and waited twice for what it sent.
struct Case {
  Program program = parse_program(read_file(test::tests_folder() + "/golden/program/two_devices.txt"));
  StepResult result;

  Case() {
    result.devices.resize(2);
    result.devices[0].begin = 1000 * kMicrosecond;
    result.devices[0].end = 1022 * kMicrosecond;
    result.devices[1].begin = 1002 * kMicrosecond;
    result.devices[1].end = 1029 * kMicrosecond;
    add(0, Opcode::input, 0, 0, 1);
    add(0, Opcode::run, 0, 1, 10);
    add(0, Opcode::send, 0, 10, 12);
    add(0, Opcode::input, 1, 12, 13);
    add(0, Opcode::run, 1, 13, 20);
    add(0, Opcode::send, 1, 20, 21);
    add(1, Opcode::recv, 0, 0, 1);
    add(1, Opcode::recv, 1, 1, 2);
    add(1, Opcode::recv, 0, 2, 11, true);
    add(1, Opcode::run, 0, 11, 18);
    add(1, Opcode::recv, 1, 18, 20, true);
    add(1, Opcode::run, 1, 20, 24);
    add(1, Opcode::output, 0, 24, 25);
  }

  // The device's n-th instruction of this opcode took from `begin` to `end`, in microseconds of the device's own step.
  void add(std::int32_t device, Opcode opcode, int n, std::int64_t begin, std::int64_t end, bool waited = false) {
    const auto& instructions = program.devices[static_cast<std::size_t>(device)].instructions;
    std::uint32_t i = 0;
    for (; instructions[i].opcode != opcode || n-- > 0;) ++i;
    result.devices[static_cast<std::size_t>(device)].spans.push_back({device, i, waited, begin * kMicrosecond, end * kMicrosecond});
  }
};

std::string text(const Timeline& timeline) {
  return join(timeline.activities, "", [&](const Activity& a) {
    const char* lane = a.lane == Lane::compute ? "compute" : a.lane == Lane::host ? "host" : "transfer";
    return concat(lane, " ", a.begin * 1e6, "..", a.end * 1e6, " on ", a.device, ": ", detail(timeline, a), "\n");
  });
}

TEST(Measured, TheTimelineHasWhatWasRecordedAndTheTransfersBetween) {
  const Case c;
  const Timeline timeline = timeline_of(c.program, c.result, "step 3");
  EXPECT_EQ(text(timeline),
            "host 0..1 on 0: input\n"
            "compute 1..10 on 0: forward of stage 0, micro-batch 0\n"
            "host 2..3 on 1: recv\n"
            "host 3..4 on 1: recv\n"
            "host 10..12 on 0: send\n"
            "host 12..13 on 0: input\n"
            "transfer 12..13 on 0: transfer from device 0 to device 1, 128 B\n"
            "compute 13..20 on 0: forward of stage 0, micro-batch 1\n"
            "compute 13..20 on 1: forward of stage 1, micro-batch 0\n"
            "host 20..21 on 0: send\n"
            "transfer 21..22 on 0: transfer from device 0 to device 1, 128 B\n"
            "compute 22..26 on 1: forward of stage 1, micro-batch 1\n"
            "host 26..27 on 1: output\n");
  EXPECT_EQ(timeline.title, "step 3");
  EXPECT_EQ(timeline.devices.size(), 2U);
  EXPECT_DOUBLE_EQ(timeline.makespan, 29e-6);
}

TEST(Measured, WhatWasWaitedForIsTheCause) {
  const Case c;
  const Timeline timeline = timeline_of(c.program, c.result, "");
  std::string causes;
  for (const Activity& activity : timeline.activities)
    if (activity.lane == Lane::compute && activity.device == 1 && activity.cause >= 0)
      causes += concat(label(timeline, activity), " after ", label(timeline, timeline.activities[static_cast<std::size_t>(activity.cause)]),
                       "\n");
  EXPECT_EQ(causes, "F0 after 0->1\nF1 after 0->1\n");
}

// Two devices sum a value; device 1 comes last and does the work, device 0 has waited for it.
TEST(Measured, ACollectiveEndsWhenItsWaitHasEnded) {
  const std::string device =
      " {state_bytes=0, step_bytes=64, scratch_bytes=0}\n  slot %a step @0 (f32[16])\n  input %a = %x\n"
      "  all_reduce %a -> update %a in 0 #0\n  free %a\n";
  const Program program = parse_program(
      concat("penstock program 1\nprogram @sum {microbatches=1}\ndata %x: f32[16]\ngroup 0 (0, 1)\ndevice 0", device, "device 1", device));
  StepResult result;
  result.devices.resize(2);
  const auto add = [&](std::int32_t d, std::uint32_t instruction, std::int64_t begin, std::int64_t end, bool waited = false) {
    result.devices[static_cast<std::size_t>(d)].spans.push_back({d, instruction, waited, begin * kMicrosecond, end * kMicrosecond, 0});
    result.devices[static_cast<std::size_t>(d)].end = end * kMicrosecond;
  };
  add(0, 0, 0, 2);
  add(0, 1, 2, 3);
  add(0, 1, 3, 12, true);
  add(1, 0, 0, 5);
  add(1, 1, 5, 10);
  add(1, 1, 10, 11, true);
  const Recording recording = recording_of(program, result);
  EXPECT_DOUBLE_EQ(recording.arrivals[0][1], 2e-6);  // after device 1 had started it, at 10
  EXPECT_DOUBLE_EQ(recording.arrivals[1][1], 1e-6);
  EXPECT_DOUBLE_EQ(recording.replay(program).makespan, 12e-6);
  EXPECT_EQ(text(timeline_of(program, result, "")),
            "host 0..2 on 0: input\n"
            "host 0..5 on 1: input\n"
            "host 2..3 on 0: all_reduce\n"
            "host 5..10 on 1: all_reduce\n"
            "transfer 10..12 on 0: all_reduce, 64 B\n"
            "transfer 10..11 on 1: all_reduce, 64 B\n");
}

// Each of two sums one after the other takes from when both devices have started it, and the group is done with the one before, to the
// first end of a wait. Asking for a sum that is there already says nothing of its time.
TEST(Measured, WhatCollectivesTook) {
  const std::string device =
      " {state_bytes=0, step_bytes=1088, scratch_bytes=0}\n  slot %a step @0 (f32[16])\n  slot %b step @64 (f32[256])\n  input %a = %x\n"
      "  input %b = %y\n  all_reduce %a -> update %a in 0 #0\n  all_reduce %b -> update %b in 0 #1\n  free %a\n  free %b\n";
  const Program program = parse_program(
      concat("penstock program 1\nprogram @sums {microbatches=1}\ndata %x: f32[16]\ndata %y: f32[256]\ngroup 0 (0, 1)\ndevice 0", device,
             "device 1", device));
  const auto taken = [&](std::int64_t first, std::int64_t second) {  // ends of device 1's waits for them
    StepResult result;
    result.devices.resize(2);
    const auto add = [&](std::int32_t d, std::uint32_t instruction, std::int64_t begin, std::int64_t end, bool waited = false) {
      result.devices[static_cast<std::size_t>(d)].spans.push_back({d, instruction, waited, begin * kMicrosecond, end * kMicrosecond, 0});
    };
    result.devices[1].begin = 50 * kMicrosecond;
    add(0, 2, 0, 10);
    add(0, 3, 10, 20);
    add(0, 2, 400, 401, true);
    add(1, 2, 0, 10);
    add(1, 3, 10, 20);
    add(1, 2, 30, first, true);
    add(1, 3, first, second, true);
    return join(collective_times(program, result), "", [](const CollectiveTime& t) {
      return concat(name(t.opcode), " of ", t.members, ": ", t.bytes, " B, ", std::round(t.seconds * 1e6), " us\n");
    });
  };
  EXPECT_EQ(taken(110, 210), "all_reduce of 2: 64 B, 100 us\nall_reduce of 2: 1024 B, 100 us\n");
  EXPECT_EQ(taken(40, 210), "all_reduce of 2: 1024 B, 190 us\n") << "the first was over before it was waited for";
  EXPECT_EQ(taken(110, 112), "all_reduce of 2: 64 B, 100 us\n");
}

}  // namespace
}  // namespace penstock
