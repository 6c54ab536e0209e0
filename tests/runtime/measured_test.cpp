#include "runtime/measured.h"

#include <gtest/gtest.h>

#include <map>

#include "base/text.h"

namespace penstock {
namespace {

// A step of two devices in which every instruction took 10 us, one after the other, but for one wait: device 1 saw the first transfer
// 5 us after device 0 had sent it.
struct Recorded {
  Program program = parse_program(read_file(std::string(PENSTOCK_TESTS) + "/golden/program/two_devices.txt"));
  StepResult result;

  Recorded() {
    result.devices.resize(2);
    for (int device = 0; device < 2; ++device) {
      DeviceReport& report = result.devices[static_cast<std::size_t>(device)];
      report.begin = 1000000 + 2000 * device;
      const auto& instructions = program.devices[static_cast<std::size_t>(device)].instructions;
      std::int64_t now = 0;
      for (std::uint32_t i = 0; i < instructions.size(); ++i) {
        if (instructions[i].opcode == Opcode::free) continue;
        if (device == 1 && instructions[i].opcode == Opcode::run && now == 20000) {
          const std::int64_t seen = end_of_send() + 5000 - 2000;  // this device began 2 us later
          report.spans.push_back({1, 0, true, now, seen});
          now = seen;
        }
        report.spans.push_back({device, i, false, now, now + 10000});
        now += 10000;
      }
      report.end = report.begin + now;
    }
  }

  std::int64_t end_of_send() const {
    for (const Span& span : result.devices[0].spans)
      if (program.devices[0].instructions[span.instruction].opcode == Opcode::send) return span.end;
    return 0;
  }
};

TEST(Measured, TheReplayIsTheRecordedStep) {
  const Recorded recorded;
  const Recording recording = recording_of(recorded.program, recorded.result);
  EXPECT_EQ(recording.begin, (std::vector<double>{0, 2e-6}));
  EXPECT_NEAR(recording.arrivals[1][0], 5e-6, 1e-12);
  EXPECT_NEAR(recording.replay(recorded.program).makespan, recording.seconds, 1e-12);
}

TEST(Measured, ATimelineHasEachSpanWhereItWas) {
  const Recorded recorded;
  const Timeline timeline = timeline_of(recorded.program, recorded.result, "step 3");
  EXPECT_EQ(timeline.title, "step 3");
  EXPECT_NEAR(timeline.makespan, recording_of(recorded.program, recorded.result).seconds, 1e-12);
  std::map<std::pair<std::int32_t, std::int32_t>, const Activity*> found;
  int transfers = 0;
  for (const Activity& activity : timeline.activities) {
    if (activity.lane == Lane::transfer) {
      ++transfers;
      EXPECT_EQ(activity.bytes, 128);
    } else {
      found[{activity.device, activity.item}] = &activity;
    }
  }
  EXPECT_EQ(transfers, 2);
  std::size_t spans = 0;
  for (const DeviceReport& report : recorded.result.devices)
    for (const Span& span : report.spans) {
      if (span.waited) continue;
      ++spans;
      const Activity* activity = found[{span.device, static_cast<std::int32_t>(span.instruction)}];
      ASSERT_NE(activity, nullptr);
      const double offset = span.device == 0 ? 0 : 2e-6;
      EXPECT_NEAR(activity->begin, offset + 1e-9 * static_cast<double>(span.begin), 1e-12);
      EXPECT_NEAR(activity->end, offset + 1e-9 * static_cast<double>(span.end), 1e-12);
    }
  EXPECT_EQ(found.size(), spans);
  EXPECT_GT(timeline.memory[0].size(), 2U);
}

}  // namespace
}  // namespace penstock
