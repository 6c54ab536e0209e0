// SPDX-License-Identifier: Apache-2.0
#include "exported/stage_marks.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

// Two layers of equal work behind another, each a list of modules of its own, of which the first begins with its layer.
Graph layers() {
  return test::graph_of(R"(graph @joint(%x: f32[4,4], %w: f32[4,4]) -> (f32[4,4]) {
  %0: f32[4,4] = mm(%x, %w) {origin="start", sequence=0}
  %1: f32[4,4] = mm(%0, %w) {origin="layers.0.0", sequence=1}
  %2: f32[4,4] = relu(%1) {origin="layers.0.1", sequence=2}
  %3: f32[4,4] = mm(%2, %w) {origin="layers.1.0", sequence=3}
  %4: f32[4,4] = relu(%3) {origin="layers.1.1", sequence=4}
  return %4
})");
}

using Paths = std::vector<std::string>;

TEST(EvenStages, BeginAtTheOutermostOfTheModulesThatBeginTogether) {
  EXPECT_EQ(even_stages(layers(), 3), Paths({"layers.0", "layers.1"}));
  EXPECT_EQ(even_stages(layers(), 5), Paths({"layers.0", "layers.0.1", "layers.1", "layers.1.1"}));
}

// As where a module is evaluated: the dropouts between the layers do nothing.
TEST(MarkStages, BeginAtWhatFollowsAModuleThatDoesNothing) {
  const Paths order = {"start",         "drop",     "layers",     "layers.0",   "layers.0.0", "layers.0.1",
                       "layers.0.drop", "layers.1", "layers.1.0", "layers.1.1", "last"};
  const auto stages_of = [&](const Paths& begins) {
    Graph graph = layers();
    mark_stages(graph, begins, order);
    std::string out;
    for (const Op& op : graph.ops) out += op.name + op.stage + " ";
    return out;
  };
  EXPECT_EQ(stages_of({"drop"}), "mm0 mm1 relu1 mm1 relu1 ");
  EXPECT_EQ(stages_of({"drop", "layers.0", "layers.0.drop"}), "mm0 reshape1 mm2 relu2 mm3 relu3 ");
  EXPECT_EQ(stages_of({"layers.1", "last"}), "mm0 mm0 relu0 mm1 relu1 reshape2 ");
  EXPECT_EQ(test::message_of([&] { stages_of({"lost"}); }), "no op comes from the module \"lost\"");
}

TEST(EvenStages, AreNoMoreThanModules) {
  EXPECT_EQ(test::message_of([&] { even_stages(layers(), 7); }),
            "the module cannot be cut into 7 stages\n  stages begin where modules do: there are 5\n  hint: take fewer stages");
}

}  // namespace
}  // namespace penstock
