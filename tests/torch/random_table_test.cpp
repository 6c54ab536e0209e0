// SPDX-License-Identifier: Apache-2.0
// Random valid tables over random stage DAGs always finish with the sequential result: replicas, weights' gradients on other actors, and
// backward split, forwards (or any ops of them) recomputed and residuals offloaded for some micro-batches only included.
#include <gtest/gtest.h>

#include "base/text.h"
#include "driver/check.h"
#include "lower/lower.h"
#include "penstock/step.h"
#include "support/dag_model.h"
#include "support/errors.h"
#include "support/random_marks.h"
#include "support/random_schedule.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

StepGradients run(const Model& model, const Graph& step, const Schedule& schedule, Recompute recompute = Recompute::none) {
  return test::step_of(model, lower(step, schedule, {.recompute = recompute}));
}

TEST(RandomTables, FinishWithTheSequentialResult) {
  const std::uint64_t seed = 20240611;
  int offloaded = 0;
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(concat("seed ", seed, " round ", round));
    test::Random random(seed + static_cast<std::uint64_t>(round));
    const StageShape shape = test::with_one_end(test::random_shape(random));
    const int actors = test::draw(random, 1, 4), microbatches = test::draw(random, 1, 5);
    test::RandomScheduleOptions options;
    options.mixed_split = test::coin(random, 0.3);
    options.foreign_weight = test::coin(random, 0.5) ? 0.3 : 0;
    options.replica = test::coin(random, 0.5) ? 0.3 : 0;
    options.foreign_input = test::coin(random, 0.5) ? 0.3 : 0;
    Schedule schedule = test::random_schedule(random, shape, actors, microbatches, options);

    const Recompute recompute = test::coin(random, 0.3)   ? Recompute::inputs
                                : test::coin(random, 0.3) ? Recompute::selective
                                                          : Recompute::none;
    if (recompute != Recompute::inputs && test::coin(random, 0.5)) {
      schedule = test::with_recomputation(random, schedule, 0.5);
    }
    if (recompute != Recompute::inputs && test::coin(random, 0.6)) {
      schedule = test::with_host_copies(random, schedule, 0.5);
      offloaded += print(schedule).find("OFFLOAD") != std::string::npos;
    }
    const test::DagModel model(shape, true), whole(shape, false);
    const Graph plain = gradient_step(model, {2 * microbatches, test::kContext, microbatches});
    const Graph step = test::coin(random, 0.5) ? test::with_random_marks(random, plain, 0.4) : plain;
    const StepGradients found = run(model, step, schedule, recompute);
    const StepGradients expected = run(whole, gradient_step(whole, {2 * microbatches, test::kContext, 1}),
                                       make_schedule("sequential", {.actors = 1, .microbatches = 1}));
    const Comparison comparison = compare(found, expected);
    EXPECT_LE(comparison.loss_difference, 1e-10) << print(schedule);
    EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst << "\n" << print(schedule);
  }
  EXPECT_GE(offloaded, 5);
}

// Tables of chains that say where their transfers start.
TEST(RandomTables, WithTransfersFinishWithTheSequentialResult) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    test::Random random(seed);
    const StageShape shape = chain(test::draw(random, 2, 5));
    const int actors = test::draw(random, 2, 4), microbatches = test::draw(random, 1, 5);
    const Schedule plain = test::random_schedule(random, shape, actors, microbatches, {.replica = test::coin(random, 0.5) ? 0.3 : 0});
    const Schedule schedule = test::with_transfers(random, plain, shape);
    SCOPED_TRACE(concat("seed ", seed, "\n", print(schedule)));
    const test::DagModel model(shape, true), whole(shape, false);
    const StepGradients found = run(model, gradient_step(model, {2 * microbatches, test::kContext, microbatches}), schedule);
    const StepGradients expected = run(whole, gradient_step(whole, {2 * microbatches, test::kContext, 1}),
                                       make_schedule("sequential", {.actors = 1, .microbatches = 1}));
    const Comparison comparison = compare(found, expected);
    EXPECT_LE(comparison.loss_difference, 1e-10);
    EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
  }
}

}  // namespace
}  // namespace penstock
