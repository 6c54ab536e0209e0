// SPDX-License-Identifier: Apache-2.0
// Lowering must keep the meaning: a program computes what its step says, whatever the table, the groups, the shares and the way of
// updating.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/errors.h"
#include "support/random_marks.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/symbols.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

std::string one_of(Random& random, const std::vector<std::string>& list) {
  return list[static_cast<std::size_t>(draw(random, 0, static_cast<int>(list.size()) - 1))];
}

std::unique_ptr<Model> random_model(Random& random) {
  ModelOptions sizes;
  sizes.stages = 4;
  sizes.numbers = {{"width", 4}, {"context", 4}, {"vocabulary", 8}};
  const bool is_gpt = coin(random, 0.5);
  if (is_gpt) sizes.numbers.insert({{"heads", 2}, {"layers", 4}, {"tied", draw(random, 0, 1)}});
  return make_model(builtin_models(), is_gpt ? "gpt" : "two-branch", sizes);
}

// An update that reads the parameter, and what is kept of it, by themselves before the gradient comes in; the count has no gradient.
Graph update_of(const TensorType& type) {
  const std::vector<std::pair<std::string, TensorType>> inputs = {
      {"parameter", type},        {"gradient", type}, {"learning_rate", {DType::f64, {}}},
      {"step", {DType::i64, {}}}, {"mean", type},     {"count", {DType::f32, {}}}};
  return trace("update", inputs, [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    const Tensor mean = in[4] * 0.9 + in[1];
    return {in[0] * 0.99 - mean * to(in[2], in[0].dtype()), mean, in[5] + 1};
  });
}

OptimiserOptions random_optimiser(Random& random, const Model& model) {
  OptimiserOptions out;
  out.name = one_of(random, {"sgd", "adamw", "adamw", "adam", "nesterov", "exported"});
  if (out.name == "exported")
    for (const ParameterSpec& spec : model.parameters()) out.updates.emplace(spec.name, update_of(spec.type));
  out.clip = draw(random, 0, 1);
  out.validated = out.name == "adamw" && out.clip > 0 && coin(random, 0.5);
  return out;
}

void expect_same(const Graph& step, const Schedule& schedule, const CompileOptions& options) {
  EXPECT_EQ(test::difference(compile(step, schedule, options), test::symbols_of(step)), "");
}

// Random tables for branches and for tied weights, some of whose micro-batches run elsewhere, with all that a table can ask for besides.
TEST(Meaning, OfRandomTablesIsTheStep) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    Random random(seed);
    const auto model = random_model(random);
    const int microbatches = draw(random, 1, 3), actors = draw(random, 1, 4);
    CompileOptions options{.recompute = test::drawn_recomputation(random)};
    if (coin(random, 0.5))
      for (int a = 0; a < actors; ++a) options.devices.push_back(draw(random, 1, 2));
    const int parts = shares_of(options.devices);
    if (parts > 1) options.zero = draw(random, 0, 3);
    const Graph plain = training_step(*model, {2 * microbatches * parts, 4, microbatches * parts}, random_optimiser(random, *model));
    const Graph step = coin(random, 0.3) ? test::with_random_marks(random, plain, 0.4) : plain;
    const StagedStep staged = prepare_stages(step);
    const StageShape shape = cut(staged, std::vector<bool>(staged.stages.size(), true)).shape;
    Schedule schedule =
        test::random_schedule(random, shape, actors, microbatches, {.foreign_weight = 0.2, .foreign_input = 0.2, .replica = 0.2});
    if (options.recompute != Recompute::inputs && coin(random, 0.5)) schedule = test::with_extras(random, std::move(schedule), shape);
    SCOPED_TRACE(
        concat("seed ", seed, ", zero ", options.zero, ", recompute ", static_cast<int>(options.recompute), "\n", print(schedule)));
    EXPECT_EQ(test::difference(compile(step, schedule, options), test::symbols_of(plain)), "");
  }
}

// The schedules that there are, on equal groups: shares of all levels, hosts, updates early and validated, the other steps of a run.
TEST(Meaning, OfKnownSchedulesIsTheStep) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    Random random(seed);
    const auto model = random_model(random);
    ScheduleOptions shape;
    shape.actors = 4;
    shape.microbatches = draw(random, 1, 3);
    const int data = draw(random, 1, 4);
    CompileOptions options{.devices = std::vector<int>(4, data), .recompute = test::drawn_recomputation(random)};
    if (data > 1) options.zero = draw(random, 0, 3);
    if (data == 4 && options.zero == 3) options.local = 2;
    Schedule schedule = make_schedule(one_of(random, {"gpipe", "1f1b", "zb-h1", "eager-1f1b"}), shape);
    if (coin(random, 0.5)) schedule = with_updates(std::move(schedule));
    const int microbatches = shape.microbatches * shares_of(options.devices);
    const OptimiserOptions optimiser = random_optimiser(random, *model);
    SCOPED_TRACE(concat("seed ", seed, ", data ", data, ", zero ", options.zero, ", local ", options.local));
    const Graph training = training_step(*model, {2 * microbatches, 4, microbatches}, optimiser);
    expect_same(training, schedule, options);
    options.blocks = shared_blocks(training, schedule, options);
    expect_same(gradient_step(*model, {2 * microbatches, 4, microbatches}), schedule, options);
    options.recompute = Recompute::none;
    expect_same(evaluation_step(*model, {2 * microbatches, 4, microbatches}), schedule, options);
  }
}

}  // namespace
}  // namespace penstock
