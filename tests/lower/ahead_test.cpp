// SPDX-License-Identifier: Apache-2.0
// Updates ahead of the norm that they are clipped by.
#include "lower/ahead.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/ops.h"
#include "penstock/step.h"
#include "simulate/simulate.h"
#include "support/golden.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

constexpr const char* kTwoUpdates =
    R"(graph @g(%p: f32[4], %q: f32[4], %g: f32[4], %m: f32[4], %v: f32[4], %rate: f32[], %step: i64[], %one: f32[], %factor: f32[]) -> (f32[4], f32[4]) {
  %0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4], %4: f32[4], %5: f32[4] = update_ahead(%p, %g, %m, %v, %rate, %step, %one) {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1, update="adamw"}
  %6: f32[4], %7: f32[4], %8: f32[4], %9: f32[4], %10: f32[4], %11: f32[4] = update_ahead(%q, %g, %m, %v, %rate, %step, %one) {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.0, update="adamw"}
  %12: f32[4], %13: f32[4], %14: f32[4] = update_validated(%0, %1, %2, %3, %g, %4, %5, %rate, %step, %one, %factor) {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.1, update="adamw"}
  %15: f32[4], %16: f32[4], %17: f32[4] = update_validated(%6, %7, %8, %9, %g, %10, %11, %rate, %step, %one, %factor) {beta1=0.9, beta2=0.95, eps=1e-08, weight_decay=0.0, update="adamw"}
  return %12, %15
}
)";

TEST(UpdateAhead, IsOneUpdateWhereItCannotBeEarly) {
  Graph graph = test::graph_of(kTwoUpdates);
  const ValueId p = graph.inputs[0];
  update_ahead_only_where(graph, [&](const Op& op) { return op.operands[0] == p; });
  verify(graph);
  const std::string text = test::text_of(graph);
  EXPECT_NE(text.find("mul(%g, %factor)"), std::string::npos) << text;
  EXPECT_NE(text.find("= adamw(%q, "), std::string::npos) << text;
  EXPECT_NE(text.find("= update_ahead(%p, "), std::string::npos) << text;
  EXPECT_EQ(text.find("update_ahead(%q, "), std::string::npos) << text;
}

TEST(UpdateAhead, StaysWhereSomethingElseReadsIt) {
  Graph graph = test::graph_of(kTwoUpdates);
  graph.outputs.push_back(graph.ops[0].results[0]);
  graph.outputs.push_back(graph.ops[1].results[5]);
  const std::string before = test::text_of(graph);
  update_ahead_only_where(graph, [](const Op&) { return false; });
  EXPECT_EQ(test::text_of(graph), before);
}

std::unique_ptr<Model> tiny(const std::string& name, int stages) {
  ModelOptions options;
  options.stages = stages;
  options.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  if (name == "gpt") options.numbers.insert({{"heads", 2}, {"layers", 4}, {"tied", 0}});
  return make_model(builtin_models(), name, options);
}

Program lowered(const Model& model, const std::string& schedule, int actors, int microbatches, bool validated) {
  OptimiserOptions options;
  options.validated = validated;
  ScheduleOptions shape;
  shape.actors = actors;
  shape.microbatches = microbatches;
  return lower(training_step(model, {microbatches, 4, microbatches}, options), with_updates(make_schedule(schedule, shape)));
}

TEST(UpdateAhead, PerceptronZeroBubble) {
  const std::string text = print(lowered(*tiny("mlp", 2), "zb-h1", 2, 2, true));
  test::expect_golden("lower/perceptron_validated.txt", text);
  EXPECT_EQ(print(parse_program(text)), text);
}

// F, I and W take 1 each; the rest what it reads and writes, so that one actor's AdamW takes `update`.
Durations durations_of(const Program& program, double update) {
  std::vector<double> seconds;
  double most = 0;  // bytes that the largest AdamW of an actor moves: 7 times its parameters
  for (const DeviceProgram& device : program.devices) {
    double bytes = 0;
    for (const Slot& slot : device.slots)
      if (slot.kind == SlotClass::state && slot.names[0].starts_with("first:")) bytes += static_cast<double>(slot.parts[0].bytes());
    most = std::max(most, 7 * bytes);
  }
  for (const Task& task : program.tasks) {
    double bytes = 0;
    for (const Op& op : task.graph->ops) bytes += cost(task.graph, op).bytes;
    seconds.push_back(update * bytes / most);
  }
  Durations durations;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& row = durations.emplace_back();
    for (const Instruction& i : device.instructions)
      row.push_back(i.opcode != Opcode::run ? 0 : i.action && i.kind != Kind::U ? 1 : seconds[i.task.index()]);
  }
  return durations;
}

double makespan(const Model& model, bool validated, double update, double latency) {
  Network network;
  network.link.latency = latency;
  const Program program = lowered(model, "zb-h2", 4, 8, validated);
  return simulate(program, durations_of(program, update), network).makespan;
}

// The zero-bubble paper's point (2401.10241, section 4): without the barrier the actors that are done early update early, and the last one
// updates while the norm travels. An update ahead moves ten tensors where one behind the barrier moves seven, so travelling must take a
// while.
TEST(UpdateAhead, IsFasterThanABarrierWhereTheNormTravels) {
  const std::unique_ptr<Model> model = tiny("gpt", 4);
  for (const double latency : {2.0, 4.0}) EXPECT_LT(makespan(*model, true, 4, latency), makespan(*model, false, 4, latency)) << latency;
}

// What clips is on its way before the first update begins: what is to be done after the loop lengthens the step by one actor's share (and
// the tied embedding's way from the last actor to the first), not by the sum of them.
TEST(UpdateAhead, BehindTheBarrierAllActorsUpdateAtTheSameTime) {
  const std::unique_ptr<Model> model = tiny("gpt", 4);
  const Program program = lowered(*model, "zb-h2", 4, 8, false);
  const Durations durations = durations_of(program, 4);
  double most = 0, all = 0;
  for (std::size_t d = 0; d < durations.size(); ++d) {
    double own = 0;
    for (std::size_t i = 0; i < durations[d].size(); ++i)
      if (!program.devices[d].instructions[i].action) own += durations[d][i];
    most = std::max(most, own);
    all += own;
  }
  EXPECT_GT(all, 2.5 * most);
  for (const double latency : {0.0, 2.0})
    EXPECT_LT(makespan(*model, false, 8, latency) - makespan(*model, false, 4, latency), 1.6 * most) << latency;
}

}  // namespace
}  // namespace penstock
