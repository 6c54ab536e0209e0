// SPDX-License-Identifier: Apache-2.0
// A recorded step gives the costs of its actions.
#include "profile/profile_batches.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// A device that computes two micro-batches of a step, each of which waits and takes an input before that.
DeviceProgram device_of(std::int32_t first, std::int32_t second) {
  DeviceProgram device;
  for (const std::int32_t microbatch : {first, second}) {
    device.instructions.push_back({.opcode = Opcode::input, .microbatch = microbatch});
    device.instructions.push_back({.kind = Kind::F, .action = true, .stage = 0, .microbatch = microbatch});
  }
  device.instructions.push_back({.stage = 0});  // behind the micro-batches
  return device;
}

DeviceReport report_of(std::int32_t device, std::int64_t input, std::int64_t run) {
  DeviceReport report;
  std::int64_t now = 0;
  const auto add = [&](std::uint32_t instruction, bool waited, std::int64_t nanoseconds) {
    report.spans.push_back({.device = device, .instruction = instruction, .waited = waited, .begin = now, .end = now + nanoseconds});
    now += nanoseconds;
  };
  for (const std::uint32_t i : {0U, 2U}) {
    add(i, false, input);
    add(i, true, 1000);
    add(i + 1, false, run);
  }
  add(4, false, 5000);
  return report;
}

// On a mesh of data=2,tensor=2: devices 0 and 1 compute the first share of each of two micro-batches together, 2 and 3 the second.
TEST(ProfileBatches, EachShareTakesWhatItsSlowestDeviceTakes) {
  PlannedBatch plan;
  plan.loads = {padded_load({1, 8}), padded_load({1, 16})};
  Program program;
  program.microbatches = 4;
  for (const std::int32_t share : {0, 0, 1, 1}) program.devices.push_back(device_of(share, 2 + share));
  StepResult result;
  for (const auto& [input, run] : {std::pair{10, 100}, {20, 300}, {30, 500}, {40, 200}})
    result.devices.push_back(report_of(static_cast<std::int32_t>(result.devices.size()), input, run));

  const std::vector<ActionTime> times = action_times(program, plan, result);
  ASSERT_EQ(times.size(), 4U);
  for (std::size_t m = 0; m < times.size(); ++m) {
    EXPECT_EQ(times[m].kind, Kind::F);
    EXPECT_EQ(times[m].stage, 0);
    EXPECT_EQ(times[m].load.input, m < 2 ? 8 : 16) << m;
    EXPECT_DOUBLE_EQ(times[m].seconds, 1e-9 * (m % 2 == 0 ? 320 : 530)) << m;
  }
}

}  // namespace
}  // namespace penstock
