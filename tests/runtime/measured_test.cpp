#include "runtime/measured.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace penstock {
namespace {

constexpr std::int64_t kMicrosecond = 1000;  // in ns

// A step of tests/golden/program/two_devices.txt in which device 1 began 2 us after device 0 and waited twice for what it sent.
struct Case {
  Program program = parse_program(read_file(std::string(PENSTOCK_TESTS) + "/golden/program/two_devices.txt"));
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
            "compute 1..10 on 0: F0 of stage 0 (task F0)\n"
            "host 2..3 on 1: recv\n"
            "host 3..4 on 1: recv\n"
            "host 10..12 on 0: send\n"
            "host 12..13 on 0: input\n"
            "transfer 12..13 on 0: transfer from device 0 to device 1, 128 B\n"
            "compute 13..20 on 0: F1 of stage 0 (task F0)\n"
            "compute 13..20 on 1: F0 of stage 1 (task F1)\n"
            "host 20..21 on 0: send\n"
            "transfer 21..22 on 0: transfer from device 0 to device 1, 128 B\n"
            "compute 22..26 on 1: F1 of stage 1 (task F1)\n"
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

}  // namespace
}  // namespace penstock
