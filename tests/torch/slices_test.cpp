// Steps whose sequences are cut into slices against the sequential step (transform/slices.h).
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "support/errors.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

using test::sequential_step;
using test::step_of;

// 5 slices of 12 tokens are unequal.
Config small(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"model.name=gpt", "layers=4", "width=16", "heads=2", "model.context=12", "vocabulary=32", "batch=8",
                              "microbatches=4", "dtype=f64", "actors=2"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

void expect_equal(const std::vector<std::string>& settings, const StepGradients& expected) {
  SCOPED_TRACE(join(settings, ", "));
  const Config config = small(settings);
  const Prepared prepared = prepare(config, builtin_models());
  const Comparison comparison = compare(step_of(config, prepared, compile_gradients(config, prepared)), expected);
  EXPECT_LE(comparison.loss_difference, 1e-10);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
}

TEST(SlicedSteps, EqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_step(small({}));
  for (const int slices : {1, 2, 4, 5, 12})
    for (const int actors : {1, 2, 4}) expect_equal({concat("slices=", slices), concat("actors=", actors)}, expected);
}

// HelixPipe's stages are what attention leaves between layers, and attention: each layer in two, and one more.
TEST(SlicedSteps, GoThroughEverySchedule) {
  const StepGradients expected = sequential_step(small({}));
  for (const int actors : {1, 2, 4})
    for (const char* schedule : {"slimpipe", "terapipe", "gpipe", "zb-h1", "chimera"})
      for (const int slices : {2, 3})
        if (actors % 2 == 0 || std::string(schedule) != "chimera")
          expect_equal({concat("schedule=", schedule), concat("slices=", slices), concat("actors=", actors)}, expected);
  for (const char* schedule : {"interleaved-1f1b", "zb-v"}) expect_equal({concat("schedule=", schedule), "slices=3", "chunks=2"}, expected);
}

TEST(SlicedSteps, MayBeOfUnequalLength) {
  const StepGradients expected = sequential_step(small({}));
  for (const char* lengths : {"[7, 4, 1]", "[3, 2, 1]"}) expect_equal({concat("slices=", lengths), "schedule=terapipe"}, expected);
}

TEST(SlicedSteps, AttentionInStagesOfItsOwn) {
  const StepGradients expected = sequential_step(small({}));
  for (const char* settings : {"group=1", "group=2"}) expect_equal({"schedule=helixpipe", "chunks=2", settings}, expected);
  expect_equal({"schedule=helixpipe", "chunks=1", "actors=4"}, expected);
}

// A run's other programs.
TEST(SlicedSteps, TrainAndEvaluate) {
  for (const char* schedule : {"1f1b", "slimpipe", "zb-h1"}) {
    const Config config = small({"slices=3", concat("schedule=", schedule)});
    const Prepared prepared = prepare(config, builtin_models());
    EXPECT_FALSE(compile_training(config, prepared).devices.empty());
    EXPECT_FALSE(compile_evaluation(config, prepared).devices.empty());
  }
}

TEST(SlicedSteps, DropTheSameActivations) {
  const StepGradients expected = sequential_step(small({"dropout=0.2"}));
  for (const int slices : {2, 5}) expect_equal({"dropout=0.2", concat("slices=", slices)}, expected);
  expect_equal({"dropout=0.2", "slices=4", "recompute=inputs"}, expected);
}

TEST(SlicedSteps, OnMeshes) {
  const StepGradients expected = sequential_step(small({}));
  expect_equal({"slices=3", "pipeline.data=2"}, expected);
  expect_equal({"slices=3", "pipeline.tensor=2"}, expected);
  expect_equal({"slices=2", "pipeline.context=2"}, expected);
  expect_equal({"slices=3", "pipeline.data=2", "zero=1"}, expected);
}

TEST(SlicedSteps, OfUntiedModels) {
  expect_equal({"tied=0", "slices=4"}, sequential_step(small({"tied=0"})));
}

std::string refusal(const std::vector<std::string>& settings) {
  return test::message_of([&] {
    const Config config = small(settings);
    compile_gradients(config, prepare(config, builtin_models()));
  });
}

TEST(SlicedSteps, RefuseModelsWhoseTokensNeedLaterOnes) {
  EXPECT_EQ(refusal({"model.name=t5", "slices=2"}),
            "pipeline.slices = 2: slice 0 needs something of slice 1, which comes later\n"
            "  read by matmul of encoder.block.0 in stage 0\n"
            "  hint: slices are for models in which no token needs one behind it: causal attention, and else ops by token");
}

TEST(SlicedSteps, RefuseTheOtherBadNumbers) {
  EXPECT_EQ(refusal({"slices=13"}),
            "pipeline.slices = 13: no tensor has a dim \"sequence\" of as many tokens\n"
            "  hint: slices are for models that name this dim and sequences of more tokens than slices");
  EXPECT_EQ(refusal({"slices=[5, 2]"}),
            "slices of unequal length: a sequence of 12 tokens is not a multiple of 7 parts\n"
            "  the slices end at 5, 7\n  constrained in stage \"0\"\n"
            "  hint: give pipeline.slices lengths whose sum divides 12");
  EXPECT_EQ(refusal({"slices=2.5"}),
            "pipeline.slices has 2.5\n  it is how many slices there are, or the length of each\n"
            "  hint: give whole numbers: slices = 8, or slices = [5, 3, 2]");
  EXPECT_EQ(refusal({"slices=2", "planner=balanced"}),
            "pipeline.slices = 2 cuts sequences of one length; batch.planner = \"balanced\" plans batches of several\n"
            "  hint: leave out pipeline.slices, or set batch.planner = \"pad\"");
  EXPECT_EQ(refusal({"slices=2", "pipeline.data=2", "zero=3"}),
            "1f1b: UNSHARD in a table of slices\n"
            "  a stage's parameters are gathered, and its gradients reduced, between whole micro-batches only\n"
            "  hint: use a table without slices, or zero = 0 or 1");
}

}  // namespace
}  // namespace penstock
