// SPDX-License-Identifier: Apache-2.0
// Steps whose loss is computed in parts by the members that its classes are split among, against the sequential step.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

Config config_of(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"width=24", "heads=4", "context=8", "batch=4", "microbatches=2", "layers=2", "dtype=f64"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

StepGradients run_step(const Config& config, const Prepared& prepared, bool in_parts) {
  const Program program = compile_gradients(config, prepared);
  EXPECT_EQ(print(program).find("cross_entropy_parts") != std::string::npos, in_parts);
  return test::step_of(config, prepared, program);
}

void expect_equal_steps(const std::vector<std::string>& settings) {
  SCOPED_TRACE(join(settings, ", "));
  const Config config = config_of(settings);
  const StepGradients expected = run_step(config, prepare_sequential(config, builtin_models()), false);
  const Comparison comparison = compare(run_step(config, prepare(config, builtin_models()), true), expected);
  EXPECT_LE(comparison.loss_difference, 1e-10);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
}

TEST(SplitLosses, EqualTheSequentialStepInF64) {
  for (const char* tied : {"tied=1", "tied=0"})
    for (const char* sequence : {"layout.sequence=tensor", "layout.sequence="})
      for (const char* schedule : {"schedule=1f1b", "schedule=zb-h1"})
        for (const char* vocabulary : {"vocabulary=32", "vocabulary=256"})
          expect_equal_steps({tied, sequence, schedule, vocabulary, "actors=2", "pipeline.tensor=2"});
}

TEST(SplitLosses, OfUnevenVocabulariesEqualTheSequentialStepInF64) {
  for (const char* tied : {"tied=1", "tied=0"})
    for (const char* recompute : {"recompute=none", "recompute=inputs"})
      expect_equal_steps({tied, recompute, "vocabulary=257", "actors=1", "pipeline.tensor=3"});
  expect_equal_steps({"vocabulary=257", "actors=2", "pipeline.data=2", "pipeline.tensor=3"});
  expect_equal_steps({"vocabulary=257", "actors=1", "pipeline.context=2", "pipeline.tensor=3"});
}

// What one axis cuts unevenly the other cuts again: members have other sizes, and other ops where the first alone adds a bias.
TEST(SplitLosses, OfTwoUnevenAxesEqualTheSequentialStepInF64) {
  for (const char* axes : {"axes=[\"context\", \"tensor\"]", "axes=[\"tensor\", \"context\"]"})
    for (const char* context : {"context=8", "context=9"})
      for (const char* tensor : {"pipeline.tensor=2", "pipeline.tensor=3"})
        expect_equal_steps({axes, context, tensor, "vocabulary=257", "heads=3", "actors=1", "pipeline.context=2"});
}

}  // namespace
}  // namespace penstock
