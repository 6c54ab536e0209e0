// SPDX-License-Identifier: Apache-2.0
// Steps whose stages give each other values split on the way equal the sequential step: every gradient, in f64.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "config/mesh.h"
#include "driver/check.h"
#include "models/registry.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

void expect_equal_steps(const std::string& mesh, const std::vector<std::string>& settings) {
  SCOPED_TRACE(concat(mesh, " ", join(settings, ", ")));
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const char* setting : {"width=24", "context=8", "vocabulary=32", "batch=8", "microbatches=2", "dtype=f64", "layout.links=tensor"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  compile_training(config, prepared);  // which checks what updates leave
  const Comparison comparison =
      compare(test::step_of(config, prepared, compile_gradients(config, prepared)), test::sequential_step(config));
  EXPECT_LE(comparison.loss_difference, 1e-10);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
}

TEST(Links, EqualTheSequentialStepUnderSchedules) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"})
    expect_equal_steps("pipe=2,tensor=2",
                       {concat("schedule=", schedule), schedule == std::string("interleaved-1f1b") ? "chunks=2" : "chunks=1", "layers=4"});
  expect_equal_steps("pipe=2,tensor=2", {"schedule=1f1b", "recompute=inputs", "dropout=0.1"});
  expect_equal_steps("pipe=3,tensor=2", {"schedule=1f1b", "layers=3", "tied=0"});
}

TEST(Links, OfOtherModelsEqualTheSequentialStep) {
  expect_equal_steps("pipe=2,tensor=2", {"model.name=t5", "layers=2"});
  expect_equal_steps("pipe=2,tensor=3", {"model.name=mlp", "layers=4", "batch=6"});
  expect_equal_steps("pipe=2,tensor=2", {"model.name=mlp", "layers=2", "recompute=inputs"});  // a sum of the forward's is read by no one
  expect_equal_steps("pipe=2,tensor=2", {"model.name=multimodal", "branches=2", "layers=1", "context=18"});
}

// Some members send more where they do not share evenly.
TEST(Links, OfUnevenSizesEqualTheSequentialStep) {
  expect_equal_steps("pipe=2,tensor=2", {"width=15", "heads=3", "context=7", "batch=6"});
  expect_equal_steps("pipe=2,tensor=4", {"width=25", "heads=5", "context=5", "batch=6"});
}

TEST(Links, GoWithOtherAxes) {
  expect_equal_steps("pipe=2,context=2,tensor=2", {"batch=4"});
  expect_equal_steps("pipe=2,tensor=2,context=2", {"batch=2", "attention=heads"});
  expect_equal_steps("pipe=2,data=2,tensor=2", {"zero=3"});
  expect_equal_steps("pipe=2,context=2", {"layout.links=context", "layout.sequence=", "layout.vocab=context", "heads=1"});
  expect_equal_steps("pipe=2,tensor=2", {"layout.sequence=tensor"});
}

}  // namespace
}  // namespace penstock
