// SPDX-License-Identifier: Apache-2.0
#include "transform/passes.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "support/errors.h"
#include "support/golden.h"

namespace penstock {
namespace {

using test::expect_golden;
using test::message_of;

struct Traced {
  Builder builder{"f"};

  Tensor input(const std::string& name, Shape shape, DType dtype = DType::f32) {
    return {&builder, builder.graph.add_input({dtype, std::move(shape)}, name).value};
  }
  // The text of the graph that returns the gradients.
  std::string gradient_text(Tensor loss, const std::vector<Tensor>& inputs) {
    for (const Tensor& gradient : gradients(loss, inputs)) builder.graph.outputs.emplace_back(gradient.value());
    verify(builder.graph);
    return print(builder.graph);
  }
};

TEST(Autodiff, Perceptron) {
  Traced t;
  const Tensor x = t.input("x", {8, 4}), w0 = t.input("w0", {6, 4}), b0 = t.input("b0", {6}), w1 = t.input("w1", {3, 6});
  const Tensor targets = t.input("targets", {8}, DType::i64);
  t.builder.marks.stage = "first";
  t.builder.marks.origin = "layer.0";
  const Tensor hidden = gelu(linear(x, w0, b0));
  t.builder.marks.stage = "second";
  t.builder.marks.origin = "layer.1";
  expect_golden("autodiff/perceptron.txt", t.gradient_text(cross_entropy(linear(hidden, w1), targets), {w0, b0, w1}));
}

// One attention layer with a tied embedding: joins, split, views, statistics.
TEST(Autodiff, TransformerLayer) {
  Traced t;
  const Tensor tokens = t.input("tokens", {2, 8}, DType::i64), targets = t.input("targets", {2, 8}, DType::i64);
  const Tensor key = t.input("key", {}, DType::i64), rows = t.input("rows", {2}, DType::i64);
  const Tensor wte = t.input("wte", {32, 16}), g = t.input("ln.weight", {16}), b = t.input("ln.bias", {16});
  const Tensor wqkv = t.input("attn.weight", {16, 48}), bqkv = t.input("attn.bias", {48});
  const Tensor x = embedding(wte, tokens);
  const Tensor qkv = reshape(addmm(bqkv, reshape(layer_norm(x, g, b), {16, 16}), wqkv), {2, 8, 48});
  std::vector<Tensor> heads;
  for (const Tensor& part : split(qkv, 16, 2)) heads.push_back(transpose(reshape(part, {2, 8, 2, 8}), 1, 2));
  const Tensor attended = scaled_dot_product_attention(heads[0], heads[1], heads[2], true);
  const Tensor y = x + dropout(reshape(transpose(attended, 1, 2), {2, 8, 16}), 0.1, key, rows);
  const Tensor loss = cross_entropy(reshape(linear(y, wte), {16, 32}), reshape(targets, {16}));
  expect_golden("autodiff/transformer_layer.txt", t.gradient_text(loss, {wte, g, b, wqkv, bqkv}));
}

TEST(Autodiff, ElementwiseAndReductions) {
  Traced t;
  const Tensor x = t.input("x", {4, 3}), y = t.input("y", {3});
  const Tensor z = x * y / (exp(x) + 1.0) - maximum(x, tanh(x));
  expect_golden("autodiff/elementwise.txt", t.gradient_text(sum(mean(z, {0}) * amax(z, {0})), {x, y}));
}

TEST(Autodiff, CastsGoBack) {
  Traced t;
  const Tensor x = t.input("x", {4, 3}), w = t.input("w", {2, 3});
  const Tensor y = linear(to(x, DType::bf16), to(w, DType::bf16));
  expect_golden("autodiff/casts.txt", t.gradient_text(sum(to(y, DType::f32)), {w}));
}

TEST(Autodiff, NothingIsEmittedForWhatIsNotAskedFor) {
  Traced t;
  const Tensor x = t.input("x", {4, 3}), w = t.input("w", {2, 3}), unused = t.input("unused", {5});
  const Tensor h = stage_boundary(linear(x, w));
  const std::string text = t.gradient_text(sum(h), {w, unused});
  EXPECT_EQ(text.find("= mm(%3"), std::string::npos) << text;
  expect_golden("autodiff/unused.txt", text);
}

TEST(Autodiff, MarksAreThoseOfTheForwardOp) {
  Traced t;
  const Tensor x = t.input("x", {4});
  t.builder.marks = {.stage = "a", .origin = "h.0", .phase = Phase::forward, .sequence = -1};
  const Tensor y = exp(x);
  t.builder.marks.stage = "b";
  const Tensor loss = sum(y * y + y);
  const std::size_t forward = t.builder.graph.ops.size();
  gradients(loss, std::vector{x});
  EXPECT_EQ(t.builder.marks.stage, "b");
  EXPECT_EQ(t.builder.marks.phase, Phase::forward);
  const Op& join = t.builder.graph.ops[t.builder.graph.ops.size() - 2];
  EXPECT_EQ(join.name, "add_n");
  EXPECT_EQ(join.operands.size(), 3u);
  EXPECT_EQ(join.stage, "b") << "both terms arise there";
  EXPECT_EQ(t.builder.graph.ops.back().stage, "a");
  for (const Op* op : {&join, &std::as_const(t.builder.graph.ops.back())}) {
    EXPECT_EQ(op->origin, "h.0");
    EXPECT_EQ(op->sequence, 0);
  }
  for (std::size_t i = forward; i < t.builder.graph.ops.size(); ++i) EXPECT_EQ(t.builder.graph.ops[i].phase, Phase::backward);
}

// A sum of what comes out of one stage is that stage's; of what comes out of several, the producer's.
TEST(Autodiff, GradientOfAnIntermediateIsJoinedWhereItArises) {
  for (const auto& [second, joined] : {std::pair{"b", "b"}, {"c", "a"}}) {
    Traced t;
    const Tensor x = t.input("x", {4});
    t.builder.marks.stage = "a";
    const Tensor y = exp(x);
    t.builder.marks.stage = "b";
    const Tensor z = exp(y);
    t.builder.marks.stage = second;
    const std::vector<Tensor> found = gradients(sum(y * z), std::vector{y});
    EXPECT_EQ(t.builder.graph.ops.back().name, "add_n");
    EXPECT_EQ(t.builder.graph.ops.back().stage, joined);
    EXPECT_EQ(found[0].value(), t.builder.graph.ops.back().results[0].value);
  }
}

TEST(Autodiff, ParametersOfTheEnclosingGraphBecomeInputsOfTheBody) {
  Traced outer;
  const Tensor w = outer.input("w", {3});
  Builder body("body");
  body.parent = &outer.builder;
  const Tensor x(&body, body.graph.add_input({DType::f32, {3}}, "x").value);
  const std::vector<Tensor> found = gradients(sum(x * w), std::vector{w});
  EXPECT_EQ(found[0].builder(), &body);
  ASSERT_EQ(body.captured.size(), 1u);
  EXPECT_EQ(body.captured[0].value, w.value());
  EXPECT_EQ(body.graph.values[body.invariant_for(body.captured[0])].name, "w");
}

TEST(Autodiff, Failures) {
  Traced t, other;
  const Tensor x = t.input("x", {4}), n = t.input("n", {4}, DType::i64);
  EXPECT_EQ(message_of([&] { gradients(x, std::vector{x}); }),
            "gradients: the loss must be a floating scalar, not f32[4]\n  hint: sum() makes a scalar");
  EXPECT_EQ(message_of([&] { gradients(sum(n), std::vector{x}); }),
            "gradients: the loss must be a floating scalar, not i64[]\n  hint: sum() makes a scalar");
  EXPECT_EQ(message_of([&] { gradients(sum(x), std::vector{n}); }), "gradients: a tensor of type i64[4] has no gradient");
  EXPECT_EQ(message_of([&] { gradients(Tensor(), std::vector{x}); }), "gradients: the loss is no tensor");
  t.builder.marks.origin = "h.0.mlp";
  EXPECT_EQ(message_of([&] { gradients(sum(call("aten::cumsum", {x}, {x.type()})[0]), std::vector{x}); }),
            "gradients: \"aten::cumsum\" is unknown and has no gradient\n"
            "  it stands between the loss and a tensor whose gradient is asked for, made in h.0.mlp\n"
            "  hint: call() takes a gradient of your own");
  const Vjp two = [](const VjpArguments& a) { return std::vector<Tensor>(2, a.cotangents[0]); };
  EXPECT_EQ(message_of([&] { gradients(sum(call("aten::cumsum", {x}, {x.type()}, {{"dim", std::int64_t{0}}}, two)[0]), std::vector{x}); }),
            "gradients: \"aten::cumsum\" has 1 operand, its gradient gives 2 cotangents");
  EXPECT_EQ(message_of([&] { gradients(sum(emit("tanh_backward", {x, x})), std::vector{x}); }),
            "gradients: \"tanh_backward\" has no gradient\n"
            "  it stands between the loss and a tensor whose gradient is asked for, made in h.0.mlp");
  EXPECT_NE(message_of([&] { gradients(sum(x), std::vector{other.input("y", {4})}); }).find("is used in graph"), std::string::npos);
}

// Twice the ops, about twice the time: a quadratic walk would take minutes here.
TEST(Autodiff, LongChainsTakeLinearTime) {
  Traced t;
  const Tensor x = t.input("x", {2});
  Tensor y = x;
  for (int i = 0; i < 20000; ++i) y = y + x;
  const auto begin = std::chrono::steady_clock::now();
  gradients(sum(y), std::vector{x});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace penstock
