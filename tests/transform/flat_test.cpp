// SPDX-License-Identifier: Apache-2.0
// Layouts of code whose inputs and outputs lie flat are decided, and each member's code is made, without the empty parts.
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/layouts.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

const char* const kUpdate = R"(graph @update(%w: f32[2,3], %g: f32[2,3], %rate: f32[]) -> (f32[2,3], f32[]) {
  %0: f32[2,3] = mul(%g, %rate) {sequence=0}
  %1: f32[2,3] = sub(%w, %0) {sequence=1}
  %2: f32[2,3] = mul(%g, %g) {sequence=2}
  %3: f32[] = sum(%2) {dim=[0, 1], keepdim=false, sequence=3}
  return %1, %3
})";

// The layout of a tensor behind `ahead` elements of a block of which each member has `each`.
Layout flat(std::int64_t ahead, std::int64_t each) {
  return {Layout::Kind::flat, -1, ahead, each};
}

// `w`, `g`: how these lie; the next w lies like g, and the sum is a term.
Graph update(const Layout& w, const Layout& g, std::int64_t member) {
  const Graph graph = graph_of(kUpdate);
  IdVector<ValueId, Layout> values(graph.values.size());
  values[graph.inputs[0]] = w;
  values[graph.inputs[1]] = g;
  GraphLayouts layouts = decide_layouts(graph, values, IdVector<ValueId, bool>(graph.values.size()), 3);
  layouts.outputs = {g, kTerm};
  return localise(graph, layouts, {"data", 3, {}, {}}, member);
}

const std::vector<bool> kNone(3);

// The gradient's middle two elements; the parameter is whole and cut; the sum is a term.
TEST(Flat, CutsWhatIsWholeBesideARange) {
  EXPECT_EQ(text_of(drop_empty(update(kWhole, flat(0, 2), 1), kNone, kNone)),
            R"(graph @update(%w: f32[2,3], %g: f32[2], %rate: f32[]) -> (f32[2], f32[]) {
  %0: f32[2] = mul(%g, %rate) {sequence=0}
  %1: f32[6] = reshape(%w) {shape=[6], sequence=1}
  %2: f32[2] = slice(%1) {dim=0, end=4, start=2, step=1, sequence=1}
  %3: f32[2] = sub(%2, %0) {sequence=1}
  %4: f32[2] = mul(%g, %g) {sequence=2}
  %5: f32[] = sum(%4) {dim=[0], keepdim=false, sequence=3}
  return %3, %5
}
)");
}

// Five elements lie ahead, so that the first member has one element of the tensor.
TEST(Flat, IsWhereTheBlockIsCut) {
  EXPECT_EQ(text_of(drop_empty(update(flat(5, 6), flat(5, 6), 0), kNone, kNone)),
            R"(graph @update(%w: f32[1], %g: f32[1], %rate: f32[]) -> (f32[1], f32[]) {
  %0: f32[1] = mul(%g, %rate) {sequence=0}
  %1: f32[1] = sub(%w, %0) {sequence=1}
  %2: f32[1] = mul(%g, %g) {sequence=2}
  %3: f32[] = sum(%2) {dim=[0], keepdim=false, sequence=3}
  return %1, %3
}
)");
}

TEST(Flat, OfNothingIsNothing) {
  const Graph none = update(flat(6, 6), flat(6, 6), 0);
  EXPECT_EQ(text_of(drop_empty(none, kNone, kNone)), R"(graph @update(%rate: f32[]) -> (f32[]) {
  %0: f32[] = full() {dtype=f32, fill_value=0.0, size=[]}
  return %0
}
)");
  EXPECT_EQ(text_of(drop_empty(none, {true, true, false}, {true, false})),
            R"(graph @update(%w: f32[1], %g: f32[1], %rate: f32[]) -> (f32[1], f32[]) {
  %0: f32[] = full() {dtype=f32, fill_value=0.0, size=[]}
  %1: f32[1] = full() {dtype=f32, fill_value=0.0, size=[1]}
  return %1, %0
}
)");
}

}  // namespace
}  // namespace penstock
