// SPDX-License-Identifier: Apache-2.0
#include "profile/whole_steps.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "penstock/predict.h"

namespace penstock {
namespace {

// Two devices that read data, do so many collectives of each kind one after the other, and read more data.
Program program_of(int sums, int gathers) {
  std::string slots, work;
  for (int i = 0; i < sums; ++i) {
    slots += concat("  slot %s", i, " step @", 64 * i, " (f32[16])\n");
    work += concat("  input %s", i, " = %x\n  all_reduce %s", i, " -> update %s", i, " in 0 #", i, "\n  free %s", i, "\n");
  }
  for (int i = 0; i < gathers; ++i) {
    const int at = 64 * sums + 192 * i;
    slots += concat("  slot %g", i, " step @", at, " (f32[16])\n  slot %w", i, " step @", at + 64, " (f32[32])\n");
    work += concat("  input %g", i, " = %x\n  all_gather %g", i, " -> store %w", i, " in 0 #", sums + i, "\n  free %g", i, "\n  free %w", i,
                   "\n");
  }
  const std::string device = concat(" {state_bytes=0, step_bytes=", 64 * sums + 192 * gathers, ", scratch_bytes=0}\n", slots, work);
  return parse_program(concat("penstock program 1\nprogram @p {microbatches=1}\ndata %x: f32[16]\n", "group 0 (0, 1)\ndevice 0", device,
                              "device 1", device));
}

Costs costs_with(double sum, double gather) {
  Costs costs;
  costs.links["gloo"] = {.latency = 1e-3};
  costs.input_seconds["x"] = 2e-3;
  costs.step_overhead["gloo"] = 5e-4;
  costs.collectives["gloo"][Opcode::all_reduce] = {.latency = sum};
  costs.collectives["gloo"][Opcode::all_gather] = {.latency = gather};
  return costs;
}

// The latencies after the fit to what steps of the program take with others.
std::pair<double, double> fitted(const Program& program, const Costs& real, Costs costs) {
  const MeasuredStep step{&program, predict(program, real, "gloo").seconds};
  fit_collectives(std::span(&step, 1), "gloo", costs);
  return {costs.collectives["gloo"][Opcode::all_reduce].latency, costs.collectives["gloo"][Opcode::all_gather].latency};
}

TEST(FitCollectives, MakesThePredictedStepAsLongAsTheMeasuredOne) {
  const Program program = program_of(3, 4);
  const Costs costs = costs_with(4e-3, 2e-3);
  for (const double more : {-1e-3, 0.0, 5e-4, 7e-3, 2.0}) {
    const auto [sum, gather] = fitted(program, costs_with(4e-3 + more, 2e-3 + more), costs);
    EXPECT_NEAR(sum, 4e-3 + more, 1e-8);
    EXPECT_NEAR(gather, 2e-3 + more, 1e-8);
  }
}

TEST(FitCollectives, TakesNoLatencyBelowNought) {
  const auto [sum, gather] = fitted(program_of(3, 4), costs_with(1e-3, 0), costs_with(4e-3, 2e-3));
  EXPECT_NEAR(sum, 1e-3, 1e-8);
  EXPECT_EQ(gather, 0);
}

TEST(FitCollectives, WeighsAllMeasuredProgramsAlike) {
  const Program many = program_of(8, 0), few = program_of(2, 0), none = program_of(0, 0);
  const auto seconds = [&](const Program& program, double latency) { return predict(program, costs_with(latency, 0), "gloo").seconds; };
  const MeasuredStep steps[] = {{&many, seconds(many, 5e-3)}, {&few, seconds(few, 3e-3)}, {&none, 1}};
  Costs costs = costs_with(1e-3, 0);
  fit_collectives(steps, "gloo", costs);
  const double latency = costs.collectives["gloo"][Opcode::all_reduce].latency;
  EXPECT_NEAR(seconds(many, latency) / steps[0].seconds * seconds(few, latency) / steps[1].seconds, 1, 1e-5);
}

TEST(FitCollectives, LeavesWhatWasNotMeasured) {
  const Program program = program_of(0, 0);
  const MeasuredStep step{&program, 1};
  Costs costs = costs_with(1e-3, 2e-3);
  const std::string before = print(costs);
  fit_collectives(std::span(&step, 1), "gloo", costs);
  fit_collectives(std::span(&step, 1), "threads", costs);
  EXPECT_EQ(print(costs), before) << "neither a step without collectives nor a backend without any says something of them";
}

}  // namespace
}  // namespace penstock
