// SPDX-License-Identifier: Apache-2.0
// A loss of logits whose classes are split: when it is computed in parts, and what is sent for it.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "lower/lower.h"
#include "models/registry.h"
#include "support/text_graphs.h"
#include "transform/layouts.h"

namespace penstock {
namespace {

using test::graph_of;

Graph head(const std::string& logits) {
  return graph_of(concat(R"(graph @step(%w: f32[7,3], %x: f32[4,3], %t: i64[4]) -> (f32[7,3], f32[], f32[4,7]) {
  %0: )",
                         logits, R"(
  %1: f32[], %2: f32[4] = cross_entropy(%0, %t) {ignore_index=-100, stage="0", origin="head", sequence=3}
  %3: f32[4,7] = cross_entropy_backward(%1, %0, %t, %2) {ignore_index=-100, stage="0", phase="backward", origin="head", sequence=3}
  return %w, %1, %3
})"));
}

AxisWishes among_three(Graph& step, std::int64_t dim) {
  step.state = 1;
  AxisWishes wishes{"tensor", 3, {}, {}};
  wishes.states["w"] = split_layout(dim, 1, step.type(step.inputs[0]).shape[dim], 3);
  return wishes;
}

TEST(LossesInParts, AreThoseOfSplitClasses) {
  Graph step = head(R"(f32[4,7] = linear(%x, %w) {stage="0", sequence=2})");
  const AxisWishes wishes = among_three(step, 0);
  const GraphLayouts layouts = decide_layouts(step, wishes);
  ASSERT_TRUE(has_split_loss(step, layouts));
  const Graph parts = losses_in_parts(step, layouts, 3);
  EXPECT_EQ(test::text_of(parts), R"(graph @step(%w: f32[7,3], %x: f32[4,3], %t: i64[4]) -> (f32[7,3], f32[], f32[4,7]) {state=1} {
  %0: f32[4,7] = linear(%x, %w) {stage="0", sequence=2}
  %1: f32[3,2,4] = cross_entropy_parts(%0, %t) {ends=[3, 5, 7], stage="0", origin="head", sequence=3}
  %2: f32[], %3: f32[4] = cross_entropy_join(%1, %t) {classes=7, ignore_index=-100, stage="0", origin="head", sequence=3}
  %4: f32[4,7] = cross_entropy_backward(%2, %0, %t, %3) {ignore_index=-100, stage="0", phase="backward", origin="head", sequence=3}
  return %w, %2, %4
}
)");
  const GraphLayouts again = decide_layouts(parts, wishes);
  EXPECT_FALSE(has_split_loss(parts, again));
  EXPECT_EQ(text_of(again.values[parts.ops[OpId(0)].results[0]]), "split 1");
  EXPECT_EQ(text_of(again.values[parts.ops[OpId(3)].results[0]]), "split 1") << "the backward sends nothing";
}

TEST(LossesInParts, AreNotThoseOfWholeOrSplitRows) {
  Graph term = head(R"(f32[4,7] = linear(%x, %w) {stage="0", sequence=2})");
  EXPECT_FALSE(has_split_loss(term, decide_layouts(term, among_three(term, 1))));
  Graph rows = graph_of(R"(graph @step(%x: f32[4,7], %t: i64[4]) -> (f32[4,7], f32[]) {
  %0: f32[], %1: f32[4] = cross_entropy(%x, %t) {ignore_index=-100, stage="0", sequence=3}
  return %x, %0
})");
  rows.state = 1;
  AxisWishes wishes{"tensor", 2, {{"x", split_layout(0, 1, 4, 2)}}, {}};
  const GraphLayouts layouts = decide_layouts(rows, wishes);
  EXPECT_FALSE(has_split_loss(rows, layouts));
  EXPECT_EQ(text_of(layouts.values[rows.ops[OpId(0)].results[0]]), "term");
}

// --- what devices move

Prepared prepared_with(const std::vector<std::string>& settings, Config& config) {
  std::vector<Override> overrides;
  for (const char* setting : {"heads=3", "width=18", "batch=4", "microbatches=2", "actors=1", "layers=1"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  config = load_config("", overrides, builtin_models());
  return prepare(config, builtin_models());
}

std::int64_t filled_bytes(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void expect_two_numbers_of_each_row(const std::vector<std::string>& settings, std::int64_t rows, std::int64_t size) {
  SCOPED_TRACE(join(settings, ", "));
  Config config;
  const Prepared prepared = prepared_with(settings, config);
  for (const DeviceProgram& device : compile_training(config, prepared).devices) {
    int gathers = 0;
    for (const Instruction& i : device.instructions) {
      if (i.opcode != Opcode::all_gather) continue;
      ++gathers;
      EXPECT_EQ(slot_bytes(device.slots[device.operands_of(i)[0].index()]), filled_bytes(2 * rows * size));
    }
    EXPECT_EQ(gathers, 2) << "one for each micro-batch, and no other in the step";
  }
}

// Two numbers of each row go from each member to each other one, filled up to what devices move; logits never do. Of 20 places nothing is
// filled: those are the 2 b s (t - 1) elements of the formula.
TEST(LossesInParts, SendTwoNumbersOfEachRow) {
  EXPECT_EQ(filled_bytes(std::int64_t{2} * 2 * 20 * 4), 2 * 2 * 20 * 4);
  for (const int members : {2, 3})
    for (const char* vocabulary : {"vocabulary=256", "vocabulary=257"})
      for (const char* tied : {"tied=1", "tied=0"})
        for (const int places : {20, 21})
          for (const auto& [dtype, size] : {std::pair("dtype=f32", 4), std::pair("dtype=f64", 8)})
            expect_two_numbers_of_each_row({vocabulary, tied, dtype, concat("context=", places), concat("pipeline.tensor=", members)},
                                           2 * places, size);
}

TEST(LossesInParts, StayWholeWithoutAxes) {
  Config config;
  const Prepared prepared = prepared_with({}, config);
  const std::string text = print(compile_training(config, prepared));
  EXPECT_NE(text.find("= cross_entropy("), std::string::npos);
  EXPECT_EQ(text.find("cross_entropy_parts"), std::string::npos);
}

}  // namespace
}  // namespace penstock
