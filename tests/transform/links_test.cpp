// SPDX-License-Identifier: Apache-2.0
// Stages give each other values split on the way: a step of two stages goes in, its members' code comes out.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/lower.h"
#include "models/support.h"
#include "penstock/step.h"
#include "stage/loop.h"
#include "support/golden.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

struct Linked {
  Graph step;
  GraphLayouts layouts;
};

// A perceptron of two stages, its hidden layers split along the axis.
Linked perceptron(const AxisWishes& axis) {
  const auto model = test::model("mlp", {{"width", 8}, {"layers", 2}, {"context", 4}, {"vocabulary", 16}}, 2);
  const Graph step = prepare_stages(gradient_step(*model, {2, 4, 2}), true, std::vector<LayoutAxis>{{axis.axis, 2, {}}}).step;
  AxisWishes wishes = axis;
  for (const ParameterSpec& spec : model->parameters())
    for (std::size_t d = 0; d < spec.dims.size(); ++d)
      if (spec.dims[d].name == "mlp") wishes.states[spec.name] = split_layout(static_cast<std::int64_t>(d), 1, spec.type.shape[d], 2);
  Linked out{with_links({&step}, decide_layouts(step, wishes), wishes)[0], {}};
  out.layouts = decide_layouts(out.step, wishes);
  return out;
}

TEST(Links, SplitWhatLeavesAStage) {
  const AxisWishes axis{"tensor", 2, {}, {kLinks}};
  const Linked linked = perceptron(axis);
  const Graph local = localise(linked.step, linked.layouts, axis, 1);
  test::expect_golden("layouts/links.txt", concat(print(linked.step), layouts_text(linked.step, linked.layouts, axis), "member 1\n",
                                                  print_body(eliminate_dead_code(local))));
}

// There is nothing more to split in what has links.
TEST(Links, AreMadeOnce) {
  const AxisWishes axis{"tensor", 2, {}, {kLinks}};
  const Linked linked = perceptron(axis);
  EXPECT_EQ(print(with_links({&linked.step}, linked.layouts, axis)[0]), print(linked.step));
}

}  // namespace
}  // namespace penstock
