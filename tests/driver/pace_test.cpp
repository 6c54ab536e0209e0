// SPDX-License-Identifier: Apache-2.0
// A step of another program is predicted by the times of steps that were made.
#include "driver/pace.h"

#include <gtest/gtest.h>

#include "config/elastic.h"
#include "models/support.h"
#include "simulate/simulate.h"

namespace penstock {
namespace {

Program program_on(int devices) {
  std::vector<Override> overrides = parse_mesh("pipe=2,data=2");
  for (const char* setting : {"layers=4", "width=32", "heads=4", "context=16", "batch=16", "microbatches=4"})
    overrides.push_back(parse_override(setting));
  const RunLayout layout = layouts_on(parse_config("", "run.toml", overrides, builtin_models()), devices).front();
  return compile_training(layout.config, prepare(layout, builtin_models()));
}

// A step in which every run takes a millisecond, and which takes `seconds`.
StepResult step_of(const Program& program, double seconds) {
  StepResult out{.seconds = seconds};
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    DeviceReport& report = out.devices.emplace_back();
    for (std::size_t i = 0; i < program.devices[d].instructions.size(); ++i)
      if (program.devices[d].instructions[i].opcode == Opcode::run)
        report.spans.push_back({static_cast<std::int32_t>(d), static_cast<std::uint32_t>(i), false, 0, 1'000'000});
  }
  return out;
}

TEST(Pace, KnowsNothingAtFirst) {
  EXPECT_EQ(Pace().predict(program_on(4)), 0);
}

TEST(Pace, GivesTheSameProgramItsOwnTime) {
  const Program program = program_on(4);
  Pace pace;
  pace.add(program, step_of(program, 0.25));
  EXPECT_NEAR(pace.predict(program), 0.25, 1e-12);
}

// One device of an actor does what two did: its forwards and backwards, of which the other actor's still has as many, are twice as many.
TEST(Pace, CountsTheRunsOfFewerDevices) {
  const Program four = program_on(4), three = program_on(3);
  Pace pace;
  pace.add(four, step_of(four, 0.25));
  EXPECT_GT(pace.predict(three), 0.25 * 1.4);
  EXPECT_LT(pace.predict(three), 0.25 * 2.2);
}

}  // namespace
}  // namespace penstock
