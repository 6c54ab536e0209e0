// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"

#include <gtest/gtest.h>

#include "ops/definition.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Tensor input(Builder& builder, const std::string& name, Shape shape, DType dtype = DType::f32) {
  return {&builder, builder.graph.add_input({dtype, std::move(shape)}, name).value};
}

TEST(Builder, ForwardOpsAreNumberedAndMarked) {
  Builder builder("f");
  const Tensor x = input(builder, "x", {2});
  builder.marks = {.stage = "s", .origin = "m", .phase = Phase::forward, .sequence = -1};
  exp(exp(x));
  EXPECT_EQ(builder.graph.ops[0].sequence, 0);
  EXPECT_EQ(builder.graph.ops[1].sequence, 1);
  EXPECT_EQ(builder.graph.ops[1].stage, "s");
  EXPECT_EQ(builder.graph.ops[1].origin, "m");
}

TEST(Builder, UsesOfTheEnclosingGraphAreCapturedOnce) {
  Builder outer("outer"), middle("middle"), inner("inner");
  middle.parent = &outer;
  inner.parent = &middle;
  const Tensor w = input(outer, "x", {2}), x = input(inner, "x", {2});
  const Tensor y = x * w + w;
  EXPECT_EQ(y.builder(), &inner);
  EXPECT_EQ(middle.captured.size(), 1u);
  ASSERT_EQ(inner.captured.size(), 1u);
  EXPECT_EQ(inner.graph.values[inner.invariant_for(inner.captured[0])].name, "x.1");
  // Between tensors of the enclosing graph alone, the op belongs there.
  EXPECT_EQ((w + w).builder(), &outer);
}

TEST(Builder, TensorsOfOtherTracesAreErrors) {
  Builder a("a"), b("b");
  const Tensor x = input(a, "x", {2}), y = input(b, "y", {2});
  EXPECT_EQ(
      message_of([&] { x + y; }),
      "a tensor of graph \"b\" is used in graph \"a\"\n  hint: a loop's tensors live in its body: return them as results of the loop");
  EXPECT_EQ(message_of([&] { x + Tensor(); }), "add: operand 1 is no tensor");
  EXPECT_EQ(message_of([&] { Tensor().shape(); }), "an empty tensor has no type");
  EXPECT_EQ(message_of([&] { full(Tensor(), {2}, 1, DType::f32); }),
            "a constant is made in the graph of a tensor, and this tensor is none");
  EXPECT_EQ(message_of([&] { x.size(1); }), "size: dim 1 is outside f32[2]");
  EXPECT_EQ(x.size(-1), 2);
}

TEST(Builder, UnknownOpsNameTheNearest) {
  Builder builder("f");
  EXPECT_EQ(message_of([&] { builder.append("lineer", {}); }), "unknown op \"lineer\"\n  hint: did you mean \"linear\"?");
  EXPECT_EQ(message_of([&] { builder.append("qqqqqqqqqq", {}); }),
            "unknown op \"qqqqqqqqqq\"\n  hint: call() takes ops of the dispatcher with their result types");
  const Tensor x = input(builder, "x", {2});
  EXPECT_EQ(message_of([&] { call("exp", {x}, {x.type()}); }),
            "call: \"exp\" is an op that Penstock knows\n  hint: use the function of that name");
  EXPECT_EQ(call("aten::cumsum", {x}, {x.type()})[0].type(), x.type());
}

TEST(Builder, ShapesOfNoEffectEmitNothing) {
  Builder builder("f");
  const Tensor x = input(builder, "x", {2, 3});
  EXPECT_EQ(reshape(x, {2, -1}).value(), x.value());
  EXPECT_EQ(expand(x, {2, 3}).value(), x.value());
  EXPECT_EQ(to(x, DType::f32).value(), x.value());
  EXPECT_EQ(add_n({x}).value(), x.value());
  EXPECT_TRUE(builder.graph.ops.empty());
}

TEST(Cost, CountsFlopsAndBytes) {
  Builder builder("f");
  const Tensor x = input(builder, "x", {8, 4}), w = input(builder, "w", {6, 4});
  const Tensor table = input(builder, "table", {1000, 4}), indices = input(builder, "indices", {3}, DType::i64);
  linear(x, w);
  reshape(x, {4, 8});
  embedding(table, indices);
  call("aten::cumsum", {x}, {x.type()});
  exp(x);
  const auto of = [&](std::size_t i) { return cost(builder.graph, builder.graph.ops[i]); };
  EXPECT_EQ(of(0).flops, 2 * 8 * 6 * 4);
  EXPECT_EQ(of(0).bytes, 4 * (32 + 24 + 48));
  EXPECT_EQ(of(1).flops + of(1).bytes, 0);
  EXPECT_EQ(of(2).bytes, 3 * 8 + 2 * 3 * 4 * 4);
  EXPECT_EQ(of(3).flops, 0);
  EXPECT_EQ(of(3).bytes, 256);
  EXPECT_EQ(of(4).flops, 32);
}

// Convolutions by the weights that meet each place, pools by their windows, sorts by comparisons; what only moves elements has none.
TEST(Cost, OfImagesAndIndices) {
  Builder builder("f");
  const Tensor x = input(builder, "x", {2, 4, 5, 5}), indices = input(builder, "indices", {3}, DType::i64);
  conv2d(x, input(builder, "w", {6, 2, 3, 3}), {}, {.groups = 2});
  conv_transpose2d(x, input(builder, "v", {4, 3, 2, 2}));
  avg_pool2d(x, 2, 2);
  interpolate(x, {7, 7}, "bilinear");
  index_select(x, 0, indices);
  index_add(x, 0, indices, input(builder, "y", {3, 4, 5, 5}));
  topk(x, 2, 1);
  const auto flops = [&](std::size_t i) { return cost(builder.graph, builder.graph.ops[i]).flops; };
  EXPECT_EQ(flops(0), 2 * (2 * 6 * 3 * 3) * (2 * 3 * 3));
  EXPECT_EQ(flops(1), 2 * (2 * 4 * 5 * 5) * (3 * 2 * 2));
  EXPECT_EQ(flops(2), 2 * 4 * 2 * 2 * 4);
  EXPECT_EQ(flops(3), 2 * 4 * 7 * 7 * 2 * 4);
  EXPECT_EQ(flops(4), 0);
  EXPECT_EQ(flops(5), 3 * 4 * 5 * 5);
  EXPECT_EQ(flops(6), 2 * 4 * 5 * 5 * 2);
}

}  // namespace
}  // namespace penstock
