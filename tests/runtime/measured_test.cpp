#include "runtime/measured.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace penstock {
namespace {

struct Case {
  Program program = parse_program(read_file(std::string(PENSTOCK_TESTS) + "/golden/program/two_devices.txt"));
  StepResult result;

  Case() { result.devices.resize(2); }
  // The n-th instruction of this opcode on the device took from `begin` to `end` (microseconds).
  void span(int device, Opcode opcode, int n, std::int64_t begin, std::int64_t end) {
    const auto& instructions = program.devices[static_cast<std::size_t>(device)].instructions;
    std::uint32_t i = 0;
    for (; instructions[i].opcode != opcode || n-- > 0;) ++i;
    result.devices[static_cast<std::size_t>(device)].spans.push_back({device, i, begin * 1000, end * 1000});
  }
};

std::string text(const Timeline& timeline) {
  return join(timeline.activities, "", [&](const Activity& a) {
    const char* lane = a.lane == Lane::compute ? "compute" : a.lane == Lane::host ? "host" : "transfer";
    return concat(lane, " ", a.begin * 1e6, "..", a.end * 1e6, " on ", a.device, ": ", detail(timeline, a), "\n");
  });
}

TEST(Measured, RunsHostWorkAndTransfers) {
  Case c;
  c.span(0, Opcode::input, 0, 0, 1);
  c.span(0, Opcode::run, 0, 1, 10);
  c.span(0, Opcode::send, 0, 10, 12);
  c.span(1, Opcode::recv, 0, 2, 3);
  c.span(1, Opcode::run, 0, 13, 20);
  // The receiver comes second, and copies.
  c.span(0, Opcode::send, 1, 14, 15);
  c.span(1, Opcode::recv, 1, 21, 24);
  const Timeline timeline = timeline_of(c.program, c.result, "step 3");
  EXPECT_EQ(text(timeline),
            "host 0..1 on 0: host\n"
            "compute 1..10 on 0: F0 of stage 0 (task F0)\n"
            "host 2..3 on 1: host\n"
            "host 10..12 on 0: host\n"
            "transfer 10..12 on 0: transfer from device 0 to device 1, 128 B\n"
            "compute 13..20 on 1: F0 of stage 1 (task F1)\n"
            "host 14..15 on 0: host\n"
            "host 21..24 on 1: host\n"
            "transfer 21..24 on 0: transfer from device 0 to device 1, 128 B\n");
  EXPECT_EQ(timeline.title, "step 3");
  EXPECT_DOUBLE_EQ(timeline.makespan, 24e-6);
  EXPECT_EQ(timeline.activities[1].item, 1);
  EXPECT_EQ(timeline.activities[1].cause, -1);
}

TEST(Measured, ATransferOfWhichOneEndWasNotRecordedIsLeftOut) {
  Case c;
  c.span(0, Opcode::send, 0, 10, 12);
  EXPECT_EQ(text(timeline_of(c.program, c.result, "")), "host 10..12 on 0: host\n");
}

TEST(Measured, NothingRecorded) {
  const Case c;
  const Timeline timeline = timeline_of(c.program, c.result, "");
  EXPECT_EQ(timeline.devices.size(), 2U);
  EXPECT_EQ(timeline.makespan, 0);
}

}  // namespace
}  // namespace penstock
