// SPDX-License-Identifier: Apache-2.0
// Workers whose tables place stages differently.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "schedule/finer_stages.h"
#include "support/errors.h"

namespace penstock {
namespace {

const Graph& training() {
  static const Graph step = [] {
    ModelOptions sizes;
    sizes.stages = 4;
    sizes.numbers = {{"layers", 4}, {"width", 8}, {"context", 4}, {"vocabulary", 16}};
    return training_step(*make_model(builtin_models(), "mlp", sizes), {8, 4, 4}, {});
  }();
  return step;
}

Schedule cut(std::vector<int> sizes, const char* name = "1f1b") {
  return with_finer_stages(make_schedule(name, {.actors = static_cast<int>(sizes.size()), .microbatches = 2}), sizes);
}

std::vector<std::vector<std::int32_t>> groups(const Program& program) {
  return {program.groups.begin(), program.groups.end()};
}

// Stage 2 is on device 0, worker 0's of actor 0, and on device 3, worker 1's of actor 1.
TEST(Workers, SumAStageWhereverTheyHaveIt) {
  const Program program = compile(training(), cut({3, 1}), {.devices = {2, 2}, .others = {cut({2, 2})}});
  std::vector<std::vector<std::int32_t>> found = groups(program);
  std::ranges::sort(found);
  EXPECT_EQ(found, (std::vector<std::vector<std::int32_t>>{{0, 1}, {0, 3}, {2, 3}}));
  std::vector<std::set<std::int32_t>> stages(4);
  for (std::size_t d = 0; d < 4; ++d)
    for (const Instruction& instruction : program.devices[d].instructions)
      if (instruction.opcode == Opcode::run && instruction.action && instruction.kind == Kind::F) stages[d].insert(instruction.stage);
  EXPECT_EQ(stages, (std::vector<std::set<std::int32_t>>{{0, 1, 2}, {0, 1}, {3}, {2, 3}}));
}

// Workers that have the same tables are the devices of an actor.
TEST(Workers, OfOneTableAreAsWithoutTables) {
  const Program one = compile(training(), cut({3, 1}), {.devices = {2, 2}});
  const Program two = compile(training(), cut({3, 1}), {.devices = {2, 2}, .others = {cut({3, 1})}});
  EXPECT_EQ(groups(two), groups(one));
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(two.devices[d].instructions.size(), one.devices[d].instructions.size());
    EXPECT_EQ(two.devices[d].slots.size(), one.devices[d].slots.size());
    EXPECT_EQ(two.devices[d].step_bytes, one.devices[d].step_bytes);
  }
}

TEST(Workers, AreOfOneStep) {
  const auto refused = [](const CompileOptions& options) { return test::message_of([&] { compile(training(), cut({3, 1}), options); }); };
  EXPECT_EQ(refused({.devices = {2, 2}, .others = {cut({4})}}),
            "the table of worker 1 has 1 actor, the first has 2\n  workers take the same steps' samples\n  hint: give each worker as many "
            "devices");
  EXPECT_EQ(refused({.devices = {2, 2}, .others = {cut({3, 2})}}),
            "the table of worker 1 has 5 stages, the first has 4\n  workers take the same steps' samples\n"
            "  hint: let each worker have all stages of the model");
  const Schedule more = with_finer_stages(make_schedule("1f1b", {.actors = 2, .microbatches = 4}), {3, 1});
  EXPECT_EQ(refused({.devices = {2, 2}, .others = {more}}),
            "the table of worker 1 has 4 micro-batches, the first has 2\n  workers take the same steps' samples\n"
            "  hint: make tables for as many micro-batches");
  const Schedule window = with_finer_stages(make_schedule("1f1b", {.actors = 2, .microbatches = 1, .window = 2}), {3, 1});
  EXPECT_EQ(
      refused({.devices = {2, 2}, .others = {window}}),
      "the table of worker 1 has 2 steps, the first has 1\n  workers take the same steps' samples\n  hint: make tables for as many steps");
  EXPECT_EQ(refused({.others = {cut({2, 2})}}),
            "there are tables for 2 workers, and an actor has 1 device\n  hint: give each actor a device of each worker");
  EXPECT_EQ(refused({.devices = {2, 2}, .zero = 1, .others = {cut({2, 2})}}),
            "workers whose stages lie differently hold shares together\n  hint: set pipeline.zero = 0");
  EXPECT_EQ(refused({.devices = {2, 2}, .others = {cut({2, 2})}, .prefetch = true}),
            "workers whose stages lie differently look up rows together\n  hint: set pipeline.prefetch = false");
}

TEST(Workers, SumAStageWhereItsForwardIs) {
  const Schedule away = parse_schedule("0F0,0F1,0I0,0I1,0W0,0W1,1W0,1W1\n1F0,1F1,1I0,1I1\n", "away.csv");
  const auto compiled = [&](const std::vector<int>& sizes) {
    return compile(training(), with_finer_stages(away, {3, 1}), {.devices = {2, 2}, .others = {with_finer_stages(away, sizes)}});
  };
  EXPECT_EQ(test::message_of([&] { compiled({2, 2}); }),
            "device 0 adds up gradients of stage 3, whose forward is on another actor\n"
            "  workers whose stages lie differently sum a stage where each has its forward\n"
            "  hint: use a table whose W are where F is");
}

// LayerPipe's updates are as late as the actor is far from the last: on another actor a stage would read another version.
TEST(Workers, SumGradientsOfOneVersion) {
  ModelOptions options;
  options.stages = 4;
  options.numbers = {{"layers", 4}, {"width", 8}, {"context", 4}, {"vocabulary", 16}};
  const Graph step = training_step(*make_model(builtin_models(), "mlp", options), {8, 4, 4}, {.name = "sgd", .clip = 0});
  const auto compiled = [&](const char* name, const std::vector<int>& one, const std::vector<int>& two) {
    const auto table = [&](const std::vector<int>& sizes) {
      return with_finer_stages(make_schedule(name, {.actors = 2, .microbatches = 2, .window = 2}), sizes);
    };
    return test::message_of([&] { compile(step, table(one), {.devices = {2, 2}, .others = {table(two)}}); });
  };
  const std::string message = compiled("layerpipe", {3, 1}, {2, 2});
  EXPECT_NE(message.find("the table of worker 1: F of stage 2, micro-batch 2 reads version 1 of the parameters; the first worker's reads"
                         " version 0\n  workers sum their gradients at each update, and under schedule layerpipe what a stage reads"),
            std::string::npos)
      << message;
  EXPECT_EQ(compiled("layerpipe", {3, 1}, {3, 1}), "no error");
  EXPECT_EQ(compiled("pipedream-2bw", {3, 1}, {2, 2}), "no error");
  EXPECT_EQ(compiled("1f1b", {3, 1}, {2, 2}), "no error");
}

TEST(Workers, HaveWavesOfOneLength) {
  const auto late = [](int microbatches) {
    return with_finer_stages(make_schedule("hetpipe", {.actors = 2, .microbatches = 1, .window = 4, .in_flight = microbatches}), {2, 2});
  };
  EXPECT_EQ(test::message_of([&] { compile(training(), late(2), {.devices = {2, 2}, .distance = 0, .others = {late(1)}}); }),
            "the table of worker 1 has 1 step of a wave, the first has 2\n  workers take the same steps' samples\n"
            "  hint: let updates be as late in each table");
}

}  // namespace
}  // namespace penstock
