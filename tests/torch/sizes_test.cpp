// SPDX-License-Identifier: Apache-2.0
// Stages that take micro-batches in sizes of their own compute what one device does that takes them one by one, and with fewer kernels.
#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "penstock/step.h"
#include "schedule/sizes.h"
#include "support/dag_model.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

constexpr int kMicrobatches = 8;

// One device that takes micro-batches of one sample, one after the other.
StepGradients sequential(const StageShape& shape, int samples) {
  const test::DagModel whole(shape, false);
  const Schedule one = make_schedule("sequential", {.actors = 1, .microbatches = samples});
  return test::step_of(whole, lower(gradient_step(whole, {samples, test::kContext, samples}), one));
}

// `samples`: of the table's micro-batches.
Program program_of(const StageShape& shape, const Schedule& table, const CompileOptions& options = {}, int samples = 1) {
  const int shares = shares_of(options.devices), batch = kMicrobatches * samples * shares;
  const int microbatches = kMicrobatches / micro_batches_together(table) * shares;
  return lower(gradient_step(test::DagModel(shape, true), {batch, test::kContext, microbatches}), table, options);
}

// The table with backwards in halves, forwards again, or residuals on the host, each for all of a stage.
Schedule varied(Random& random, Schedule table) {
  for (std::vector<Action>& row : table.actors) {
    const int way = draw(random, 0, 3);
    std::vector<Action> out;
    const auto add = [&](Action action, Kind kind) {
      action.kind = kind;
      out.push_back(action);
    };
    for (const Action& action : row) {
      const bool is_forward = action.kind == Kind::F;
      if (!is_forward && way == 2) add(action, Kind::R);
      if (!is_forward && way == 3) add(action, Kind::RELOAD);
      add(action, is_forward ? Kind::F : way == 1 ? Kind::I : Kind::B);
      if (!is_forward && way == 1) add(action, Kind::W);
      if (is_forward && way == 3) add(action, Kind::OFFLOAD);
    }
    row = std::move(out);
  }
  return table;
}

void expect_equal(const StepGradients& found, const StepGradients& expected, const Schedule& table) {
  const Comparison comparison = compare(found, expected);
  EXPECT_LE(comparison.loss_difference, 1e-10) << print(table);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst << "\n" << print(table);
}

std::map<std::int32_t, int> forwards_by_stage(const Program& program) {
  std::map<std::int32_t, int> out;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions)
      out[i.stage] += i.opcode == Opcode::run && i.action && i.kind == Kind::F && program.tasks[i.task].name.starts_with("F");
  return out;
}

TEST(Sizes, OfAChain) {
  const StageShape shape = chain(3);
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{{1, 2, 1}, {2, 1, 4}, {4, 2, 1}, {1, 4, 2}, {2, 2, 2}}) {
    const Schedule table = graphpipe(shape, kMicrobatches, sizes);
    const Program program = program_of(shape, table);
    const std::map<std::int32_t, int> forwards = forwards_by_stage(program);
    for (std::int32_t s = 0; s < 3; ++s) EXPECT_EQ(forwards.at(s), kMicrobatches / sizes[static_cast<std::size_t>(s)]) << print(table);
    EXPECT_EQ(program.microbatches, kMicrobatches);
    expect_equal(test::step_of(test::DagModel(shape, true), program), sequential(shape, kMicrobatches), table);
  }
}

TEST(Sizes, OfBranchesThatSplitRecomputeAndOffload) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const StageShape shape = test::with_one_end(test::random_shape(random));
    std::vector<int> sizes;
    for (std::size_t s = 0; s < shape.predecessors.size(); ++s) sizes.push_back(1 << draw(random, 0, 2));
    const Schedule table = varied(random, graphpipe(shape, kMicrobatches, sizes));
    const int samples = draw(random, 1, 2);
    expect_equal(test::step_of(test::DagModel(shape, true), program_of(shape, table, {}, samples)),
                 sequential(shape, samples * kMicrobatches), table);
  }
}

// Each device of an actor has its share of every micro-batch of the table, also of those that it takes together.
TEST(Sizes, OfActorsWithSeveralDevices) {
  const StageShape shape = chain(3);
  const Schedule table = graphpipe(shape, kMicrobatches, {1, 4, 2});
  for (const std::vector<int>& devices : std::vector<std::vector<int>>{{2, 2, 2}, {1, 2, 1}, {2, 1, 2}})
    for (const int zero : {0, 2})
      expect_equal(test::step_of(test::DagModel(shape, true), program_of(shape, table, {.devices = devices, .zero = zero})),
                   sequential(shape, kMicrobatches * shares_of(devices)), table);
}

// Models of the registry in their configurations' own way; the masks of dropout are keyed by sample.
TEST(Sizes, OfModels) {
  using Settings = std::vector<std::string>;
  const Settings text = {"width=16", "heads=2", "context=10", "vocabulary=32", "layers=3", "actors=3"};
  const auto with = [&](Settings settings, const char* more) {
    settings.emplace_back(more);
    return settings;
  };
  for (const auto& [model, own] : {std::pair<const char*, Settings>{"gpt", with(text, "dropout=0.2")},
                                   {"gpt", with(with(text, "dropout=0.2"), "recompute=selective")},
                                   {"gpt", with(with(text, "tied=1"), "recompute=inputs")},
                                   {"moe", text},
                                   {"multimodal", {"context=10", "width=16", "actors=4"}},
                                   {"dlrm", {"actors=3"}},
                                   {"candle-uno", {"actors=3"}}}) {
    const Settings all = with(with(with(with(own, concat("model.name=", model).c_str()), "batch=16"), "microbatches=8"), "dtype=f64");
    std::vector<Override> overrides;
    for (const std::string& setting : all) overrides.push_back(parse_override(setting));
    SCOPED_TRACE(join(all, " "));
    const Config config = load_config("", overrides, builtin_models());
    Prepared prepared = prepare(config, builtin_models());
    StageShape shape = chain(prepared.schedule.stages());
    if (!prepared.schedule.predecessors.empty()) shape.predecessors = prepared.schedule.predecessors;
    std::vector<int> sizes;
    for (std::size_t s = 0; s < shape.predecessors.size(); ++s) sizes.push_back(1 << s % 3);
    prepared.schedule = graphpipe(shape, kMicrobatches, sizes);
    choose_sizes(config, prepared);
    EXPECT_EQ(prepared.one_by_one, "");
    const Program program = compile_gradients(config, prepared);
    const std::map<std::int32_t, int> forwards = forwards_by_stage(program);
    for (std::size_t s = 0; s < sizes.size(); ++s) EXPECT_EQ(forwards.at(static_cast<std::int32_t>(s)), kMicrobatches / sizes[s]);
    expect_equal(test::step_of(config, prepared, program), test::sequential_step(config, 16), prepared.schedule);
    EXPECT_NO_THROW(compile_evaluation(config, prepared));
  }
}

// The same bits as one by one: what needs all samples of a micro-batch at once (batch norm), has no rule for parts of one (the gradient of
// T5's positions), lies otherwise along an axis of the mesh, or is rounded by micro-batch.
TEST(Sizes, ThatCannotBeTakenAtOnceRunOneAfterTheOther) {
  using Settings = std::vector<std::string>;
  for (const auto& [settings, reason] : std::vector<std::pair<Settings, const char*>>{
           {{"model.name=resnet", "width=4", "image=32"}, "all samples of a micro-batch are needed"},
           {{"model.name=t5", "width=16", "heads=2", "context=10", "vocabulary=32"}, "stage"},
           {{"width=16", "heads=2", "context=10", "vocabulary=32", "pipeline.context=2"}, "stage"},
           {{"width=16", "heads=2", "context=10", "vocabulary=32", "dtype=bf16"}, "all samples of a micro-batch are needed for to of"}}) {
    std::vector<Override> overrides;
    for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
    for (const char* setting : {"actors=2", "batch=16", "microbatches=8"}) overrides.push_back(parse_override(setting));
    SCOPED_TRACE(join(settings, " "));
    const Config config = load_config("", overrides, builtin_models());
    Prepared prepared = prepare(config, builtin_models());
    const auto step = [&](const std::vector<int>& sizes) {
      prepared.schedule = graphpipe(chain(2), kMicrobatches, sizes);
      choose_sizes(config, prepared);
      const Program program = compile_gradients(config, prepared);
      return std::pair(test::step_of(config, prepared, program), forwards_by_stage(program));
    };
    const auto [single, forwards] = step({1, 1});
    EXPECT_EQ(prepared.one_by_one, "");
    const auto [together, also] = step({1, 2});
    EXPECT_EQ(also, forwards);
    EXPECT_NE(prepared.one_by_one.find(reason), std::string::npos) << prepared.one_by_one;
    EXPECT_EQ(together.loss, single.loss);
    EXPECT_EQ(together.gradients, single.gradients);
  }
}

}  // namespace
}  // namespace penstock
