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

TEST(EvenStages, AreNoMoreThanModules) {
  EXPECT_EQ(test::message_of([&] { even_stages(layers(), 7); }),
            "the module cannot be cut into 7 stages\n  stages begin where modules do: there are 5\n  hint: take fewer stages");
}

}  // namespace
}  // namespace penstock
