// SPDX-License-Identifier: Apache-2.0
#include "stage/stage_layers.h"

#include <gtest/gtest.h>

#include "stage/loop.h"
#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::step_with;

// Two layers in stage "a", of which the second goes on in "b", between an embedding and a head that are in none.
Graph two_layers() {
  return step_with(
      "%0: f32[2,3] = mul(%x, %w) {stage=\"a\", origin=\"embedding\"}"
      "%1: f32[2,3] = exp(%0) {stage=\"a\", origin=\"h.0.attn\"}"
      "%2: f32[2,3] = neg(%1) {stage=\"a\", origin=\"h.0\"}"
      "%3: f32[2,3] = exp(%2) {stage=\"a\", origin=\"h.0.mlp.3\"}"
      "%4: f32[2,3] = exp(%3) {stage=\"a\", origin=\"h.1.attn\"}"
      "%5: f32[2,3] = reshape(%4) {size=[2, 3], stage=\"a\", origin=\"h.1.attn\"}"
      "%6: f32[2,3] = exp(%5) {stage=\"b\", origin=\"h.1.mlp\"}"
      "%7: f32[2,3] = neg(%6) {stage=\"b\", origin=\"h.1.mlp\"}"
      "%8: f32[] = sum(%7) {dim=[0, 1], keepdim=false, stage=\"b\", origin=\"head\"} return %8\n");
}

std::vector<int> marked(const std::vector<int>& again) {
  const Graph step = mark_layers(assign_stages(two_layers()), again);
  std::vector<int> out;
  const Graph& body = *step.ops[loop_of(step)].body;
  for (std::size_t i = 0; i < body.ops.size(); ++i)
    if (body.ops[i].attributes.contains(kRecompute)) out.push_back(static_cast<int>(i));
  return out;
}

TEST(StageLayers, AreNumberedModules) {
  const StagedStep staged = assign_stages(two_layers());
  EXPECT_EQ(layer_counts(staged.step, staged.stages), (std::vector<int>{2, 1}));
}

// A layer's results for others stay kept: the last op of the first, and in the second what a view is of that another stage reads.
TEST(StageLayers, AreMarkedButForWhatTheyGiveToOthers) {
  using Ops = std::vector<int>;
  EXPECT_EQ(marked({0, 0}), Ops{});
  EXPECT_EQ(marked({1, 0}), (Ops{1, 2}));
  EXPECT_EQ(marked({2, 0}), (Ops{1, 2}));
  EXPECT_EQ(marked({0, 1}), (Ops{6}));
  EXPECT_EQ(marked({2, 1}), (Ops{1, 2, 6}));
}

}  // namespace
}  // namespace penstock
