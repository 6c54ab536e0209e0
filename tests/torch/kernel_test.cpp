// SPDX-License-Identifier: Apache-2.0
// Every kernel in f32 against f64, and adding to what is there against storing, on the random graphs around every op.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "ops/definition.h"
#include "program/memory_plan.h"
#include "support/errors.h"
#include "support/random_ops.h"
#include "support/seed.h"
#include "torch/op_samples.h"
#include "torch/run_graph.h"
#include "torch/sample_graphs.h"

namespace penstock {
namespace {

using test::GraphRunner;
using test::OpCase;
using T = at::Tensor;

template <class Check>
void for_random_cases(int rounds, Check check) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round)
    for (const OpCase& c : test::random_cases(random)) {
      check(c, test::inputs_of(c, random));
      if (testing::Test::HasFailure()) return;
    }
}

TEST(Kernels, InF32EqualF64) {
  for_random_cases(10, [](const OpCase& c, std::vector<T> inputs) {
    // The values are such as f32 can hold, so that both see the same numbers (and the same kinks).
    for (T& x : inputs)
      if (x.scalar_type() == at::kDouble) x = x.to(at::kFloat).to(at::kDouble);
    const std::vector<T> expected = test::run_graph(c.graph, inputs), found = test::run_graph(test::in_dtype(c.graph, DType::f32), inputs);
    for (std::size_t o = 0; o < found.size(); ++o)
      EXPECT_LT(test::relative_difference(found[o], expected[o], 1), 1e-4) << c.op << ", output " << o << "\n" << print(c.graph);
  });
}

TEST(Kernels, AddWhatTheyWouldStore) {
  for (DType dtype : {DType::f64, DType::f32})
    for_random_cases(5, [&](const OpCase& c, const std::vector<T>& inputs) {
      const Graph graph = test::in_dtype(c.graph, dtype);
      const std::vector<T> expected = test::run_graph(graph, inputs);
      GraphRunner runner(graph, std::vector<ResultMode>(expected.size(), ResultMode::add));
      for (std::size_t i = 0; i < inputs.size(); ++i) runner.input(i).copy_(inputs[i]);
      for (std::size_t o = 0; o < expected.size(); ++o) runner.output(o).fill_(1);
      runner.run();
      runner.run();
      for (std::size_t o = 0; o < expected.size(); ++o)
        EXPECT_LT(test::relative_difference(runner.output(o), expected[o] * 2 + 1, 1), 1e-5) << c.op << ", output " << o << "\n"
                                                                                             << print(graph);
    });
}

TEST(Kernels, TakeOperandsWithGaps) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const test::OpSample& sample : test::op_samples())
    for (DType dtype : {DType::f64, DType::f32}) {
      if (find_op(sample.op.name)->collective) continue;
      std::vector<T> dense, spread;
      const Graph graph = test::in_dtype(test::graph_of(sample, false), dtype);
      for (std::size_t i = 0; i < sample.operands.size(); ++i) {
        const auto& operand = sample.operands[i];
        dense.push_back(test::random_tensor(random, graph.type(graph.inputs[i]), operand.low, operand.high));
        spread.push_back(at::stack({dense[i], at::zeros_like(dense[i])}, -1));
      }
      const std::vector<T> expected = test::run_graph(graph, dense);
      const std::vector<T> found = test::run_graph(test::in_dtype(test::graph_of(sample, true), dtype), spread);
      for (std::size_t o = 0; o < expected.size(); ++o)
        EXPECT_LT(test::relative_difference(found[o], expected[o], 1), dtype == DType::f64 ? 1e-12 : 1e-5)
            << sample.text() << ", output " << o;
    }
}

// One weight matrix through every library, with every start.
TEST(Kernels, EveryLibraryMultipliesAlike) {
  std::mt19937_64 random(3);
  const T x = test::random_tensor(random, {DType::f32, {17, 33}}), w = test::random_tensor(random, {DType::f32, {20, 33}});
  const T b = test::random_tensor(random, {DType::f32, {20}}), d = test::random_tensor(random, {DType::f32, {17, 20}});
  for (const char* kernel : {"mkl", "onednn", "penstock"}) {
    const std::string choice = concat("{kernel=\"", kernel, "\"}");
    GraphRunner runner(parse_graph(concat(R"(penstock graph 1
      graph @g(%x: f32[17,33], %w: f32[20,33], %b: f32[20], %d: f32[17,20]) -> (f32[17,20], f32[20,33], f32[17,66]) {
        %0: f32[17,20] = linear(%x, %w, %b) )",
                                          choice, R"(
        %1: f32[20,17] = transpose(%d) {dim0=0, dim1=1}
        %2: f32[20,33] = mm(%1, %x) )",
                                          choice, R"(
        %3: f32[17,33] = mm(%d, %w) )",
                                          choice, R"(
        %4: f32[17,33] = mm(%d, %w) )",
                                          choice, R"(
        %5: f32[17,66] = cat(%3, %4) {dim=1}
        return %0, %2, %5
      })")),
                       {ResultMode::store, ResultMode::add, ResultMode::store});
    const T inputs[] = {x, w, b, d};
    for (std::size_t i = 0; i < 4; ++i) runner.input(i).copy_(inputs[i]);
    runner.output(1).fill_(1);
    runner.run();
    EXPECT_LT(test::relative_difference(runner.output(0), x.matmul(w.t()) + b), 1e-6) << kernel;
    EXPECT_LT(test::relative_difference(runner.output(1), d.t().matmul(x) + 1), 1e-6) << kernel;
    for (const T& part : runner.output(2).split(33, 1)) EXPECT_LT(test::relative_difference(part, d.matmul(w)), 1e-6) << kernel;
  }
}

std::string with_types(std::string text, const std::string& dtype, const std::string& statistic) {
  for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, dtype);
  for (std::size_t at; (at = text.find("S[")) != std::string::npos;) text.replace(at, 1, statistic);
  return text;
}

// The heads' results and gradients lie where they are joined; read by somebody else, too, they are copied there.
TEST(Kernels, OfAttentionWriteWhereHeadsAreJoined) {
  for (const auto& [dtype, statistic] : {std::pair("f32", "f32"), std::pair("bf16", "f32"), std::pair("f64", "f64")}) {
    std::mt19937_64 random(8);
    T results[2][2];
    const T qkv = test::random_tensor(random, {DType::f64, {2, 9, 36}}), d = test::random_tensor(random, {DType::f64, {2, 9, 12}});
    for (const bool copied : {false, true}) {
      std::string text = R"(%0: D[2,9,12], %1: D[2,9,12], %2: D[2,9,12] = split(%x) {dim=2, split_size=12}
)";
      for (int part = 0; part < 3; ++part)
        text += concat("%", 3 + 2 * part, ": D[2,9,3,4] = reshape(%", part, ") {shape=[2,9,3,4]}\n%", 4 + 2 * part,
                       ": D[2,3,9,4] = transpose(%", 3 + 2 * part, ") {dim0=1, dim1=2}\n");
      text += R"(%9: D[2,3,9,4], %10: S[2,3,9] = scaled_dot_product_attention(%4, %6, %8) {is_causal=true, scale=0.5}
%11: D[2,9,3,4] = transpose(%9) {dim0=1, dim1=2}
%12: D[2,9,12] = reshape(%11) {shape=[2,9,12]}
%13: D[2,9,3,4] = reshape(%d) {shape=[2,9,3,4]}
%14: D[2,3,9,4] = transpose(%13) {dim0=1, dim1=2}
%15: D[2,3,9,4], %16: D[2,3,9,4], %17: D[2,3,9,4] = scaled_dot_product_attention_backward(%14, %4, %6, %8, %9, %10) {is_causal=true, scale=0.5}
)";
      for (int part = 0; part < 3; ++part)
        text += concat("%", 18 + 2 * part, ": D[2,9,3,4] = transpose(%", 15 + part, ") {dim0=1, dim1=2}\n%", 19 + 2 * part,
                       ": D[2,9,12] = reshape(%", 18 + 2 * part, ") {shape=[2,9,12]}\n");
      text += "%24: D[2,9,36] = cat(%19, %21, %23) {dim=2}\nreturn %12, %24";
      std::string outputs = "D[2,9,12], D[2,9,36]";
      for (int part = 0; copied && part < 3; ++part) text += concat(", %", 15 + part), outputs += ", D[2,3,9,4]";
      const Graph graph = parse_graph(with_types(
          concat("penstock graph 1\ngraph @g(%x: D[2,9,36], %d: D[2,9,12]) -> (", outputs, ") {\n", text, "\n}\n"), dtype, statistic));
      EXPECT_EQ(std::ranges::count(plan_scratch(graph).parts, true), copied ? 0 : 9);
      GraphRunner runner(graph);
      runner.input(0).copy_(qkv), runner.input(1).copy_(d);
      runner.run();
      for (std::size_t o = 0; o < 2; ++o) results[copied][o] = runner.output(o).clone();
    }
    for (std::size_t o = 0; o < 2; ++o) EXPECT_TRUE(results[0][o].equal(results[1][o])) << dtype;
  }
}

// Gradients of weights and biases that are products and sums of bf16: added to f32 memory as they are, not rounded before.
TEST(Kernels, OfBf16AddToF32WithoutRounding) {
  std::mt19937_64 random(3);
  const T x = test::random_tensor(random, {DType::bf16, {35, 21}}), d = test::random_tensor(random, {DType::bf16, {35, 20}});
  for (const char* kernel : {"mkl", "onednn", "penstock"}) {
    GraphRunner runner(parse_graph(concat(R"(penstock graph 1
      graph @g(%x: bf16[35,21], %d: bf16[35,20]) -> (f32[21,20], f32[20,21], f32[20]) {
        %0: bf16[21,35] = transpose(%x) {dim0=0, dim1=1}
        %1: bf16[21,20] = mm(%0, %d) {kernel=")",
                                          kernel, R"("}
        %2: f32[21,20] = to(%1) {dtype=f32}
        %3: bf16[21,20] = mm(%0, %d) {kernel=")",
                                          kernel, R"("}
        %4: bf16[20,21] = transpose(%3) {dim0=0, dim1=1}
        %5: f32[20,21] = to(%4) {dtype=f32}
        %6: bf16[20] = sum(%d) {dim=[0], keepdim=false}
        %7: f32[20] = to(%6) {dtype=f32}
        return %2, %5, %7
      })")),
                       {ResultMode::add, ResultMode::store, ResultMode::add});
    runner.input(0).copy_(x);
    runner.input(1).copy_(d);
    for (std::size_t o = 0; o < 3; ++o) runner.output(o).fill_(1);
    runner.run();
    const T wx = x.to(at::kDouble), wd = d.to(at::kDouble), product = wx.t().matmul(wd);
    EXPECT_LT(test::relative_difference(runner.output(0), product + 1), 1e-5) << kernel;
    EXPECT_LT(test::relative_difference(runner.output(1), product.t()), 1e-5) << kernel;
    EXPECT_LT(test::relative_difference(runner.output(2), wd.sum(0) + 1), 1e-5) << kernel;
  }
}

// A block of a model in bf16 against f64: a norm with weights of f32, a product with a bias, GELU, attention and the loss, with gradients.
TEST(Kernels, InBf16AreNearF64) {
  std::mt19937_64 random(11);
  const auto run = [](const std::string& dtype, const std::vector<T>& inputs) {
    const std::string statistic = dtype == "f64" ? "f64" : "f32";
    return test::run_graph(with_types(R"(penstock graph 1
      graph @g(%x: D[14,12], %g: S[12], %w: D[12,12], %b: D[12], %t: i64[14], %one: S[]) -> (S[], D[14,12], S[12], S[12], D[12,12], D[12]) {
        %0: D[14,12], %1: S[14,1], %2: S[14,1] = native_layer_norm(%x, %g, %g) {eps=1e-05}
        %3: D[14,12] = addmm(%b, %0, %w)
        %4: D[14,12] = gelu(%3) {approximate="tanh"}
        %5: D[2,1,7,12] = reshape(%4) {shape=[2, 1, 7, 12]}
        %6: D[2,1,7,12], %7: S[2,1,7] = scaled_dot_product_attention(%5, %5, %5) {is_causal=true, scale=0.3}
        %8: D[14,12] = reshape(%6) {shape=[14, 12]}
        %9: D[14,12] = add(%8, %x)
        %10: S[], %11: S[14] = cross_entropy(%9, %t) {ignore_index=-100}
        %12: D[14,12] = cross_entropy_backward(%one, %9, %t, %11) {ignore_index=-100}
        %13: D[2,1,7,12] = reshape(%12) {shape=[2, 1, 7, 12]}
        %14: D[2,1,7,12], %15: D[2,1,7,12], %16: D[2,1,7,12] = scaled_dot_product_attention_backward(%13, %5, %5, %5, %6, %7) {is_causal=true, scale=0.3}
        %17: D[2,1,7,12] = add_n(%14, %15, %16)
        %18: D[14,12] = reshape(%17) {shape=[14, 12]}
        %19: D[14,12] = gelu_backward(%18, %3) {approximate="tanh"}
        %20: D[12,14] = transpose(%0) {dim0=0, dim1=1}
        %21: D[12,12] = mm(%20, %19)
        %22: D[12] = sum(%19) {dim=[0], keepdim=false}
        %23: D[12,12] = transpose(%w) {dim0=0, dim1=1}
        %24: D[14,12] = mm(%19, %23)
        %25: D[14,12], %26: S[12], %27: S[12] = native_layer_norm_backward(%24, %x, %1, %2, %g, %g)
        return %10, %25, %26, %27, %21, %22
      })",
                                      dtype, statistic),
                           inputs);
  };
  const auto of = [&](Shape shape, DType dtype = DType::bf16) { return test::random_tensor(random, {dtype, std::move(shape)}); };
  const std::vector<T> inputs = {of({14, 12}), of({12}, DType::f32),         of({12, 12}),
                                 of({12}),     at::arange(14).remainder(12), at::full({}, 1.0)};
  const std::vector<T> found = run("bf16", inputs), expected = run("f64", inputs);
  for (std::size_t o = 0; o < found.size(); ++o)
    EXPECT_LT((found[o].to(at::kDouble) - expected[o]).norm().item().toDouble(), 3e-2 * expected[o].norm().item().toDouble()) << o;
}

// A result that leaves transposed is computed where it will lie only by kernels that take the strides.
TEST(Kernels, GiveTransposedResults) {
  std::mt19937_64 random(5);
  for (DType dtype : {DType::f64, DType::f32}) {
    const std::string d(name(dtype));
    const auto of = [&](Shape shape) { return test::random_tensor(random, {dtype, std::move(shape)}); };
    const T x = of({6, 9}), y = of({6, 9}), w = of({9}), targets = at::arange(6);
    const auto run = [&](bool transposed) {
      std::string text =
          "penstock graph 1\ngraph @g(%x: D[6,9], %y: D[6,9], %w: D[9], %t: i64[6]) -> (O) {\n"
          "%0: D[6,9], %1: D[6,1], %2: D[6,1] = native_layer_norm(%x, %w, %w) {eps=0.1}\n"
          "%3: D[6,9], %4: D[9], %5: D[9] = native_layer_norm_backward(%y, %x, %1, %2, %w, %w)\n"
          "%6: D[6,9] = gelu(%x)\n%7: D[6,9] = softmax(%x) {dim=1}\n"
          "%8: D[], %9: D[6] = cross_entropy(%x, %t) {ignore_index=-100}\n"
          "%10: D[6,9] = cross_entropy_backward(%8, %x, %t, %9) {ignore_index=-100}\n"
          "%11: D[6,9] = mul(%x, %y)\n%12: D[6,9] = add_n(%x, %y, %x)\n"
          "%13: D[9,6] = transpose(%y) {dim0=0, dim1=1}\n%14: D[6,6] = mm(%x, %13)\n";
      std::string types, values;
      int next = 15;
      for (int value : {0, 3, 6, 7, 10, 11, 12, 14}) {
        const std::string shape = value == 14 ? "D[6,6]" : transposed ? "D[9,6]" : "D[6,9]";
        if (transposed) text += concat("%", next, ": ", shape, " = transpose(%", value, ") {dim0=0, dim1=1}\n");
        types += concat(types.empty() ? "" : ", ", shape);
        values += concat(values.empty() ? "%" : ", %", transposed ? next++ : value);
      }
      text += concat("return ", values, "\n}");
      text.replace(text.find("(O)"), 3, concat("(", types, ")"));
      for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, d);
      return test::run_graph(text, {x, y, w, targets});
    };
    const std::vector<T> straight = run(false), flipped = run(true);
    for (std::size_t i = 0; i < straight.size(); ++i)
      EXPECT_LT(test::relative_difference(flipped[i], straight[i].t()), 1e-5) << d << ", output " << i;
  }
}

// A convolution, its norm and a pooling with all their gradients and bags of embeddings, in low precision and twice in f32.
TEST(Kernels, OfImagesAndBagsRunInLowPrecisionAndRepeatTheirBits) {
  std::mt19937_64 random(7);
  const auto run = [](const std::string& dtype, const std::vector<T>& inputs) {
    std::string text = R"(penstock graph 1
      graph @g(%x: D[3,4,9,9], %w: D[5,4,3,3], %b: D[5], %d: D[3,5,2,2], %e: D[6,8], %t: i64[3,2])
          -> (D[3,5,2,2], D[3,4,9,9], D[5,4,3,3], D[5], D[3,8], D[6,8]) {
        %0: D[3,5,5,5] = convolution(%x, %w, %b) {padding=[1,1], stride=[2,2]}
        %1: D[3,5,5,5], %2: S[5], %3: S[5] = native_batch_norm(%0, %b, %b) {eps=0.1}
        %4: D[3,5,2,2], %5: i64[3,5,2,2] = max_pool2d_with_indices(%1) {kernel_size=[2,2], padding=[0,0], stride=[2,2]}
        %6: D[3,5,5,5] = max_pool2d_with_indices_backward(%d, %5) {input_size=[3,5,5,5], kernel_size=[2,2], padding=[0,0], stride=[2,2]}
        %7: D[3,5,5,5], %8: D[5], %9: D[5] = native_batch_norm_backward(%6, %0, %2, %3, %b)
        %10: D[3,4,9,9] = convolution_backward_input(%7, %w) {input_size=[3,4,9,9], padding=[1,1], stride=[2,2]}
        %11: D[5,4,3,3] = convolution_backward_weight(%7, %x) {padding=[1,1], stride=[2,2], weight_size=[5,4,3,3]}
        %12: D[3,8] = embedding_bag(%e, %t)
        %13: D[6,8] = embedding_bag_dense_backward(%12, %t) {num_weights=6}
        return %4, %10, %11, %8, %12, %13
      })";
    for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, dtype);
    for (std::size_t at; (at = text.find("S[")) != std::string::npos;) text.replace(at, 1, dtype == "f64" ? "f64" : "f32");
    return test::run_graph(text, inputs);
  };
  // The values are such as bf16 can hold, so that the maxima are the same.
  const auto of = [&](Shape shape) { return test::random_tensor(random, {DType::bf16, std::move(shape)}); };
  const std::vector<T> inputs = {of({3, 4, 9, 9}), of({5, 4, 3, 3}), of({5}),
                                 of({3, 5, 2, 2}), of({6, 8}),       test::random_tensor(random, {DType::i64, {3, 2}}, 0, 6)};
  const std::vector<T> expected = run("f64", inputs), once = run("f32", inputs), again = run("f32", inputs), low = run("bf16", inputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(test::relative_difference(once[i], expected[i]), 1e-5) << "output " << i;
    EXPECT_TRUE(once[i].equal(again[i])) << "output " << i;
    // One maximum in another place moves a whole entry of the gradient.
    if (i == 0 || i >= 4) {
      EXPECT_LT(test::relative_difference(low[i], expected[i]), 0.05) << "output " << i;
    }
  }
}

// A mask depends on the sample's number and the element only: not on which micro-batch the sample is in.
TEST(Kernels, DropoutDoesNotDependOnMicrobatching) {
  std::mt19937_64 random(4);
  const T x = test::random_tensor(random, {DType::f32, {6, 3, 35}}, 1, 2);
  const T seed = at::full({}, 11, at::kLong), step = at::full({}, 3, at::kLong), rows = at::arange(10, 16);
  const auto dropped = [&](std::int64_t begin, std::int64_t end) {
    const std::string n = std::to_string(end - begin);
    return test::run_graph(concat("penstock graph 1\ngraph @g(%x: f32[", n, ",3,35], %seed: i64[], %step: i64[], %rows: i64[", n,
                                  "]) -> (f32[", n, ",3,35]) {\n%0: i64[] = random_key(%seed, %step) {op=5}\n%1: f32[", n,
                                  ",3,35] = dropout(%x, %0, %rows) {p=0.25}\nreturn %1\n}"),
                           {x.slice(0, begin, end), seed, step, rows.slice(0, begin, end)})[0];
  };
  const T whole = dropped(0, 6);
  EXPECT_TRUE(at::cat({dropped(0, 1), dropped(1, 4), dropped(4, 6)}).equal(whole));
  const double kept = whole.ne(0).to(at::kDouble).mean().item().toDouble();
  EXPECT_NEAR(kept, 0.75, 0.06);
  EXPECT_LT(test::relative_difference(whole, at::where(whole.ne(0), x / 0.75, at::zeros_like(x))), 1e-6);
  EXPECT_FALSE(whole[0].ne(0).equal(whole[1].ne(0)));
  const T key = at::full({}, 12345678901234, at::kLong);
  const char* text =
      "penstock graph 1\ngraph @g(%x: {}[6,105], %key: i64[], %rows: i64[6]) -> ({}[6,105]) {\n"
      "%0: {}[6,105] = dropout(%x, %key, %rows) {p=0.4}\nreturn %0\n}";
  const auto mask_in = [&](const std::string& dtype) {
    std::string graph = text;
    for (std::size_t at; (at = graph.find("{}")) != std::string::npos;) graph.replace(at, 2, dtype);
    return test::run_graph(graph, {x.view({6, 105}), key, rows})[0].ne(0);
  };
  EXPECT_TRUE(mask_in("f32").equal(mask_in("f64"))) << "our loops draw the same bits";
}

// Three parts of 7 classes, the second all -inf in one row, against the whole; class 2 is ignored.
TEST(Kernels, OfALossInPartsEqualTheWhole) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  // Shares are exponentials of differences of numbers up to 11, whose last place is 9.5e-7 in f32.
  for (const auto& [dtype, tolerance] : {std::pair("f64", 1e-14), std::pair("f32", 2e-6), std::pair("bf16", 1e-2)}) {
    const std::string statistic = dtype == std::string("f64") ? "f64" : "f32";
    const char* text = R"(penstock graph 1
      graph @g(%x: D[9,7], %t: i64[9], %d: S[]) -> (S[], S[9], D[9,7], S[], S[9], D[9,7], S[3,2,9]) {
        %0: S[], %1: S[9] = cross_entropy(%x, %t) {ignore_index=2}
        %2: D[9,7] = cross_entropy_backward(%d, %x, %t, %1) {ignore_index=2}
        %3: S[3,2,9] = cross_entropy_parts(%x, %t) {ends=[3, 5, 7]}
        %4: S[], %5: S[9] = cross_entropy_join(%3, %t) {classes=7, ignore_index=2}
        %6: D[9,3] = slice(%x) {dim=1, end=3, start=0, step=1}
        %7: D[9,4] = slice(%x) {dim=1, end=7, start=3, step=1}
        %8: D[9,3] = cross_entropy_backward(%d, %6, %t, %5) {ignore_index=2}
        %9: D[9,4] = cross_entropy_backward(%d, %7, %t, %5) {begin=3, ignore_index=2}
        %10: D[9,7] = cat(%8, %9) {dim=1}
        return %0, %1, %2, %4, %5, %10, %3
      })";
    const char* of_parts = R"(penstock graph 1
      graph @g(%d: S[3,2,9], %x: D[9,7], %t: i64[9], %p: S[3,2,9]) -> (D[9,7]) {
        %0: D[9,7] = cross_entropy_parts_backward(%d, %x, %t, %p) {ends=[3, 5, 7]}
        return %0
      })";
    const Graph graph = parse_graph(with_types(text, dtype, statistic));
    const T x = test::random_tensor(random, graph.type(graph.inputs[0]), -9, 9), t = at::arange(9).fmod(7);
    x[1].narrow(0, 3, 2).fill_(-INFINITY);
    const T d = test::random_tensor(random, graph.type(graph.inputs[2]));
    const std::vector<T> out = test::run_graph(graph, {x, t, d});
    for (std::size_t i : {0, 1, 2}) EXPECT_LT(test::relative_difference(out[i + 3], out[i]), tolerance) << dtype << ", output " << i;
    EXPECT_TRUE(out[5][2].eq(0).all().item().toBool()) << "an ignored row has no gradient";
    const T shares = (out[6].select(1, 0) - out[4]).exp(), weight = d * t.ne(2);
    const T dparts = at::stack({shares * weight, weight.neg().expand_as(shares)}, 1).to(d.scalar_type());
    const T by_parts = test::run_graph(with_types(of_parts, dtype, statistic), {dparts, x, t, out[6]})[0];
    EXPECT_LT(test::relative_difference(by_parts, out[2]), tolerance) << dtype;
    // A row without any number has no loss; nor is a NaN of one part hidden by the others.
    x[1].fill_(-INFINITY);
    EXPECT_TRUE(test::run_graph(graph, {x, t, out[0]})[3].isnan().item().toBool());
    x[1].fill_(1);
    x[1][4].fill_(NAN);
    EXPECT_TRUE(test::run_graph(graph, {x, t, out[0]})[3].isnan().item().toBool());
  }
}

// A row's elements draw what they draw in the row that they are a part of.
TEST(Kernels, DropPartsOfRowsAsTheRows) {
  std::mt19937_64 random(6);
  for (const char* dtype : {"f32", "f64", "bf16"}) {
    std::string whole = R"(penstock graph 1
      graph @g(%x: D[2,5,12], %key: i64[], %rows: i64[2]) -> (D[2,5,12]) {
        %0: D[2,5,12] = dropout(%x, %key, %rows) {p=0.4}
        return %0
      })";
    std::string parts = R"(penstock graph 1
      graph @g(%x: D[4,12], %key: i64[], %rows: i64[4], %positions: i64[4]) -> (D[4,12]) {
        %0: D[4,12] = dropout(%x, %key, %rows, %positions) {p=0.4}
        return %0
      })";
    for (std::string* text : {&whole, &parts})
      for (std::size_t at; (at = text->find("D[")) != std::string::npos;) text->replace(at, 1, dtype);
    const Graph graph = parse_graph(whole);
    const T x = test::random_tensor(random, graph.type(graph.inputs[0])), key = at::full({}, 77, at::kLong);
    const T rows = at::arange(5, 7), expected = test::run_graph(graph, {x, key, rows})[0];
    const T of = at::arange(4).remainder(2), positions = at::arange(4) + 1;  // tokens 1 to 4, of the samples in turn
    const auto tokens = [&](const T& all) { return all.view({10, 12}).index_select(0, of * 5 + positions); };
    const T found = test::run_graph(parse_graph(parts), {tokens(x), key, rows.index_select(0, of), positions})[0];
    EXPECT_TRUE(found.equal(tokens(expected))) << dtype;
  }
}

// In bf16 as in f32 of the same numbers, rounded once.
TEST(Kernels, AttendInRangesInBf16) {
  std::mt19937_64 random(8);
  const auto attend = [&](const char* dtype, const std::vector<T>& inputs) {
    std::string text = R"(penstock graph 1
      graph @g(%q: D[1,2,4,8], %k: D[1,2,6,8], %r: i64[1,4,2], %b: D[2,11], %d: D[1,2,4,8]) -> (D[1,2,4,8], D[1,2,4,8], D[1,2,6,8], D[2,11]) {
        %0: D[1,2,4,8], %1: f32[1,2,4] = attention_in_ranges(%q, %k, %k, %r, %b) {reach=6, scale=0.5}
        %2: D[1,2,4,8], %3: D[1,2,6,8], %4: D[1,2,6,8], %5: D[2,11] = attention_in_ranges_backward(%d, %q, %k, %k, %0, %1, %r, %b) {reach=6, scale=0.5}
        return %0, %2, %3, %5
      })";
    for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, dtype);
    return test::run_graph(text, inputs);
  };
  const auto draw = [&](Shape shape) { return test::random_tensor(random, {DType::bf16, std::move(shape)}); };
  const T ranges = at::arange(8).remainder(7).view({1, 4, 2});
  std::vector<T> inputs = {draw({1, 2, 4, 8}), draw({1, 2, 6, 8}), ranges, draw({2, 11}), draw({1, 2, 4, 8})};
  const std::vector<T> found = attend("bf16", inputs);
  for (T& x : inputs)
    if (x.scalar_type() == at::kBFloat16) x = x.to(at::kFloat);
  const std::vector<T> expected = attend("f32", inputs);
  for (std::size_t o = 0; o < found.size(); ++o) EXPECT_LT(test::relative_difference(found[o], expected[o]), 2e-2) << o;
}

// Keys in two parts, whose results are joined. Query 0 attends to the first part alone, query 2 to the second, query 3 to nothing.
TEST(Kernels, AttendInRangesPartByPart) {
  std::mt19937_64 random(9);
  for (const char* dtype : {"f32", "f64"}) {
    const auto attend = [&](std::string text, const std::vector<T>& inputs) {
      for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, dtype);
      return test::run_graph(text, inputs);
    };
    const char* const whole = R"(penstock graph 1
      graph @g(%q: D[1,2,4,8], %k: D[1,2,6,8], %r: i64[1,4,2], %d: D[1,2,4,8]) -> (D[1,2,4,8], D[1,2,4,8], D[1,2,6,8], D[1,2,6,8]) {
        %0: D[1,2,4,8], %1: D[1,2,4] = attention_in_ranges(%q, %k, %k, %r) {reach=6, scale=0.5}
        %2: D[1,2,4,8], %3: D[1,2,6,8], %4: D[1,2,6,8] = attention_in_ranges_backward(%d, %q, %k, %k, %0, %1, %r) {reach=6, scale=0.5}
        return %0, %2, %3, %4
      })";
    const char* const parts = R"(penstock graph 1
      graph @g(%q: D[1,2,4,8], %a: D[1,2,2,8], %b: D[1,2,4,8], %ra: i64[1,4,2], %rb: i64[1,4,2], %d: D[1,2,4,8]) -> (D[1,2,4,8], D[1,2,4,8], D[1,2,4,8], D[1,2,2,8], D[1,2,2,8], D[1,2,4,8], D[1,2,4,8]) {
        %0: D[1,2,4,8], %1: D[1,2,4] = attention_in_ranges(%q, %a, %a, %ra) {reach=6, scale=0.5}
        %2: D[1,2,4,8], %3: D[1,2,4] = attention_in_ranges(%q, %b, %b, %rb) {reach=6, scale=0.5}
        %4: D[1,2,4,8], %5: D[1,2,4] = attention_join(%0, %1, %2, %3)
        %6: D[1,2,4,8], %7: D[1,2,2,8], %8: D[1,2,2,8] = attention_in_ranges_backward(%d, %q, %a, %a, %4, %5, %ra) {reach=6, scale=0.5}
        %9: D[1,2,4,8], %10: D[1,2,4,8], %11: D[1,2,4,8] = attention_in_ranges_backward(%d, %q, %b, %b, %4, %5, %rb) {reach=6, scale=0.5}
        return %4, %6, %9, %7, %8, %10, %11
      })";
    const DType type = std::string(dtype) == "f32" ? DType::f32 : DType::f64;
    const auto draw = [&](Shape shape) { return test::random_tensor(random, {type, std::move(shape)}); };
    const T q = draw({1, 2, 4, 8}), k = draw({1, 2, 6, 8}), d = draw({1, 2, 4, 8});
    const T ranges = at::tensor({0, 2, 1, 5, 3, 6, 0, 0}, at::kLong).view({1, 4, 2});
    const std::vector<T> expected = attend(whole, {q, k, ranges, d});
    const std::vector<T> found = attend(
        parts, {q, k.narrow(2, 0, 2).contiguous(), k.narrow(2, 2, 4).contiguous(), ranges.clamp(0, 2), ranges.sub(2).clamp(0, 4), d});
    const double close = type == DType::f32 ? 1e-6 : 1e-14;
    EXPECT_LT(test::relative_difference(found[0], expected[0]), close) << dtype;
    EXPECT_LT(test::relative_difference(found[1] + found[2], expected[1]), close) << dtype;
    EXPECT_LT(test::relative_difference(at::cat({found[3], found[5]}, 2), expected[2]), close) << dtype;
    EXPECT_LT(test::relative_difference(at::cat({found[4], found[6]}, 2), expected[3]), close) << dtype;
    EXPECT_TRUE(found[0].select(2, 3).eq(0).all().item().toBool()) << "what attends to nothing has nothing";
  }
}

TEST(Kernels, OfAttentionInRangesRefuseKeysThatAreNotThere) {
  const auto refusal = [](const char* dtype, std::int64_t first, std::int64_t end, bool biased = false, const char* more = "") {
    std::string text = biased ? R"(penstock graph 1
      graph @g(%x: D[1,1,4,4], %r: i64[1,4,2], %b: D[1,5]) -> (D[1,1,4,4]) {
        %0: D[1,1,4,4], %1: D[1,1,4] = attention_in_ranges(%x, %x, %x, %r, %b) {reach=3, scale=1.0}
        return %0
      })"
                              : R"(penstock graph 1
      graph @g(%x: D[1,1,4,4], %r: i64[1,4,2]) -> (D[1,1,4,4]) {
        %0: D[1,1,4,4], %1: D[1,1,4] = attention_in_ranges(%x, %x, %x, %r) {reach=3, scale=1.0}
        return %0
      })";
    for (std::size_t at; (at = text.find("D[")) != std::string::npos;) text.replace(at, 1, dtype);
    text.insert(text.find("}\n        return"), more);
    const at::ScalarType type = dtype == std::string("f32") ? at::kFloat : at::kDouble;
    T ranges = at::zeros({1, 4, 2}, at::kLong);
    ranges[0][3][0] = first;
    ranges[0][3][1] = end;
    std::vector<T> inputs = {at::ones({1, 1, 4, 4}, type), ranges};
    if (biased) inputs.push_back(at::ones({1, 5}, type));
    return test::message_of([&] { test::run_graph(text, inputs); });
  };
  for (const char* dtype : {"f32", "f64"}) {
    EXPECT_EQ(refusal(dtype, 2, 5),
              "attention_in_ranges: query 3 attends to keys 2 to 4\n  there are 4 keys; no query attends to more than 3");
    EXPECT_EQ(refusal(dtype, -1, 1),
              "attention_in_ranges: query 3 attends to keys -1 to 0\n  there are 4 keys; no query attends to more than 3");
    EXPECT_EQ(refusal(dtype, 0, 4),
              "attention_in_ranges: query 3 attends to keys 0 to 3\n  there are 4 keys; no query attends to more than 3");
    EXPECT_EQ(refusal(dtype, 0, 2, true), "attention_in_ranges: query 3 attends to keys 0 to 1\n  the bias is of distances below 3");
    EXPECT_EQ(refusal(dtype, 4, 2), "no error") << "a range that ends before it begins is empty";
    EXPECT_EQ(refusal(dtype, 2, 4, false, ", is_causal=true"), "no error");
    EXPECT_EQ(refusal(dtype, 2, 4, false, ", is_causal=true, offset=-1"),
              "attention_in_ranges: query 3 attends to keys 2 to 3\n  it is causal: no query attends to keys behind it");
    EXPECT_EQ(refusal(dtype, 2, 4, true, ", offset=2"),
              "attention_in_ranges: query 3 attends to keys 2 to 3\n  the bias is of distances below 3");
  }
}

TEST(Kernels, OfALossInPartsRefuseTargetsOfNoClass) {
  const char* text = R"(penstock graph 1
    graph @g(%x: f32[3,2,2], %t: i64[2]) -> (f32[]) {
      %0: f32[], %1: f32[2] = cross_entropy_join(%x, %t) {classes=7, ignore_index=9}
      return %0
    })";
  const T x = at::full({3, 2, 2}, 1.0, at::kFloat), t = at::full({2}, 9, at::kLong);
  EXPECT_EQ(test::run_graph(text, {x, t})[0].item().toDouble(), 0);
  for (const std::int64_t target : {-1, 7})
    EXPECT_EQ(test::message_of([&] { test::run_graph(text, {x, at::full({2}, target, at::kLong)}); }),
              concat("cross_entropy: target ", target, " is outside its 7 classes\n  hint: targets to leave out are 9"));
}

}  // namespace
}  // namespace penstock
