// SPDX-License-Identifier: Apache-2.0
#include "program/flops.h"

#include <gtest/gtest.h>

#include "config/compile.h"
#include "models/registry.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

// A step of a GPT: three products of each matrix for each row (forward, input gradient, weight gradient),
// attention, and what else there is, which is little.
TEST(Flops, OfAStepAreThoseOfItsProducts) {
  const Config config = parse_config(
      "[model]\nname = \"gpt\"\nlayers = 2\nwidth = 64\nheads = 2\ncontext = 32\n[train]\nbatch = 8\n[pipeline]\nmicrobatches = 4\n",
      "test", {}, builtin_models());
  const auto flops = [&](Recompute recompute) {
    Config changed = config;
    changed.pipeline.program.recompute = recompute;
    return step_flops(compile_training(changed, prepare(changed, builtin_models())));
  };
  const double rows = 8 * 32, matrices = 2 * 12 * 64 * 64 + 64 * 256, attention = 2 * 2 * 7 * rows * 32 * 64 / 2;
  const double products = 3 * 2 * rows * matrices + attention;
  EXPECT_GT(flops(Recompute::none), products);
  EXPECT_LT(flops(Recompute::none), 1.15 * products);
  EXPECT_GT(flops(Recompute::inputs), 1.2 * flops(Recompute::none));
}

}  // namespace
}  // namespace penstock
