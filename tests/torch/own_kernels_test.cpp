// SPDX-License-Identifier: Apache-2.0
// Our own kernels for devices, by the stand-in's emulator, against the same ops in f64 on the host.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "ops/definition.h"
#include "support/errors.h"
#include "support/seed.h"
#include "torch/device.h"
#include "torch/kernel.h"
#include "torch/launches.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;
using test::launches;
using test::message_of;

// The reason for which an operand has a dtype of its own when the data are of another.
enum class Of : std::uint8_t { data, statistic, weight, index };
struct Operand {
  Of of;
  Shape shape;
  double low = -1, high = 1;
};
struct Case {
  std::string op, kernel;
  std::vector<Operand> operands;
  Attributes attributes = {};
  std::vector<DType> only = {};  // dtypes of data; empty: all
};
struct Dtypes {
  DType data, weight;
};

Graph graph_of(const Case& c, Dtypes dtypes) {
  Graph graph;
  graph.name = "g";
  Op op;
  op.name = c.op;
  op.attributes = c.attributes;
  std::vector<TensorType> types;
  for (const auto& [of, shape, low, high] : c.operands) {
    const DType statistic = dtypes.data == DType::f64 ? DType::f64 : DType::f32;
    types.push_back({of == Of::data ? dtypes.data : of == Of::weight ? dtypes.weight : of == Of::index ? DType::i64 : statistic, shape});
    op.operands.push_back(graph.add_input(types.back(), concat("x", types.size())));
  }
  for (const TensorType& type : find_op(op.name)->infer(op, types)) op.results.push_back(graph.add_value(type));
  graph.outputs = op.results;
  graph.ops.push_back(std::move(op));
  return graph;
}

// The most that a number may be off: half of a step of its dtype where it is rounded, and 1e-6 of the largest.
double worst_excess(const T& found, const T& expected) {
  if (expected.numel() == 0) return 0;
  const double step = found.scalar_type() == at::kBFloat16 ? 1.0 / 256 : found.scalar_type() == at::kHalf ? 1.0 / 2048 : 0;
  const T of = expected.abs(), allowed = of * step + std::max(of.max().item<double>(), 1e-30) * 1e-6;
  return ((found.to(at::kDouble) - expected).abs() / allowed).max().item<double>();
}

void expect_as_in_f64(const Case& c, Dtypes dtypes, std::mt19937_64& random) {
  const Graph graph = graph_of(c, dtypes), exact = graph_of(c, {DType::f64, DType::f64});
  SCOPED_TRACE(print(graph));
  std::vector<T> inputs, wide;
  for (std::size_t i = 0; i < c.operands.size(); ++i) {
    inputs.push_back(test::random_tensor(random, graph.type(graph.inputs[i]), c.operands[i].low, c.operands[i].high));
    wide.push_back(c.operands[i].of == Of::index ? inputs[i] : inputs[i].to(at::kDouble));
  }
  const std::int64_t before = launches(c.kernel.c_str());
  const std::vector<T> found = test::run_graph(graph, inputs, open_device("standin")), expected = test::run_graph(exact, wide);
  const bool is_empty = std::ranges::any_of(inputs, [](const T& x) { return x.numel() == 0; });
  EXPECT_EQ(launches(c.kernel.c_str()) - before, is_empty ? 0 : 1);
  for (std::size_t o = 0; o < found.size(); ++o) EXPECT_LT(worst_excess(found[o], expected[o]), 1) << "output " << o;
  const std::vector<T> again = test::run_graph(graph, inputs, open_device("standin"));  // in the other order of threads
  for (std::size_t o = 0; o < found.size(); ++o) EXPECT_TRUE(again[o].equal(found[o])) << "output " << o;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  const Attributes ignored = {{"ignore_index", std::int64_t{2}}}, eps = {{"eps", 1e-5}};
  const std::vector<DType> no_f16 = {DType::f32, DType::bf16};
  for (const auto& [rows, width] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5}, {1, 1}, {3, 5}, {7, 33}, {130, 128}, {301, 36}, {2, 4100}, {2, 9001}}) {
    const double w = static_cast<double>(width);
    const Operand x{Of::data, {rows, width}, -3, 3}, mean{Of::statistic, {rows, 1}}, rstd{Of::statistic, {rows, 1}, 0.5, 2},
        weight{Of::weight, {width}}, own_weight{Of::data, {width}};
    out.push_back({"cross_entropy", "cross_entropy", {x, {Of::index, {rows}, 0, w}}, ignored});
    Attributes of_part = ignored;
    of_part["begin"] = std::int64_t{3};
    for (const Attributes& attributes : {ignored, of_part})
      out.push_back({"cross_entropy_backward",
                     "cross_entropy_backward",
                     {{Of::statistic, {}}, x, {Of::index, {rows}, 0, w + 6}, {Of::statistic, {rows}, 3, 4}},
                     attributes});
    out.push_back({"native_layer_norm", "row_norm", {x, weight, weight}, eps, no_f16});
    out.push_back({"native_layer_norm", "row_norm", {x}, eps, no_f16});
    out.push_back({"native_layer_norm_backward", "row_norm_backward", {x, x, mean, rstd, weight, weight}, {}, no_f16});
    out.push_back({"native_layer_norm_backward", "row_norm_backward", {x, x, mean, rstd}, {}, no_f16});
    out.push_back({"_fused_rms_norm", "row_norm", {x, own_weight}, eps, no_f16});
    out.push_back({"_fused_rms_norm_backward", "row_norm_backward", {x, x, rstd, own_weight}, {}, no_f16});
    const Attributes adamw = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
    const Operand second{Of::data, x.shape, 0.5, 2}, rate{Of::statistic, {}, 0.1, 0.2}, step{Of::index, {}, 1, 2000},
        factor{Of::statistic, {}};
    const std::vector<DType> f32 = {DType::f32};
    out.push_back({"adamw", "adamw", {x, x, x, second, rate, step}, adamw, f32});
    Attributes half = adamw;
    half["update"] = std::string("adamw");
    out.push_back({"update_ahead", "adamw", {x, x, x, second, rate, step, factor}, half, f32});
    out.push_back({"update_validated", "adamw", {x, x, second, x, x, x, second, rate, step, factor, factor}, half, f32});
    const Operand indices{Of::index, {rows, 3}, 0, w};
    out.push_back({"embedding", "embedding", {{Of::data, {width, 6}}, indices}});
    out.push_back({"embedding",
                   "embedding",
                   {{Of::data, {width, 8}}, {Of::index, {rows}, 0, w + 4}},
                   {{"begin", std::int64_t{3}}, {"whole", width + 4}}});
    out.push_back({"embedding_dense_backward", "embedding_backward", {{Of::data, {rows, 3, 5}}, indices}, {{"num_weights", width}}});
    out.push_back({"embedding_bag_dense_backward", "embedding_backward", {{Of::data, {rows, 5}}, indices}, {{"num_weights", width}}});
  }
  return out;
}

TEST(OwnKernels, EqualTheOpInF64) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const Case& c : cases())
    for (const auto& [data, weight] :
         std::vector<Dtypes>{{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f16}}) {
      if (!c.only.empty() && std::ranges::find(c.only, data) == c.only.end()) continue;
      expect_as_in_f64(c, {data, weight}, random);
    }
}

// Sums over rows that are added to what is there, by kernels that have ranges of rows, and where a row of a table comes often.
TEST(OwnKernels, AddWhatTheyWouldStore) {
  std::mt19937_64 random(3);
  const Operand x{Of::data, {301, 20}}, mean{Of::statistic, {301, 1}}, rstd{Of::statistic, {301, 1}, 0.5, 2}, weight{Of::weight, {20}};
  const std::vector<std::pair<Case, std::vector<ResultMode>>> adding = {
      {{"native_layer_norm_backward", "sum_columns", {x, x, mean, rstd, weight, weight}},
       {ResultMode::store, ResultMode::add, ResultMode::store}},
      {{"_fused_rms_norm_backward", "sum_columns", {x, x, rstd, weight}}, {ResultMode::store, ResultMode::add}},
      {{"embedding_dense_backward", "embedding_backward", {x, {Of::index, {301}, 0, 7}}, {{"num_weights", std::int64_t{9}}}},
       {ResultMode::add}}};
  for (const auto& [c, modes] : adding) {
    const Graph graph = graph_of(c, {DType::f32, DType::f32});
    test::GraphRunner runner(graph, modes, open_device("standin"));
    std::vector<T> wide;
    for (std::size_t i = 0; i < c.operands.size(); ++i) {
      const T input = test::random_tensor(random, graph.type(graph.inputs[i]), c.operands[i].low, c.operands[i].high);
      runner.input(i).copy_(input);
      wide.push_back(c.operands[i].of == Of::index ? input : input.to(at::kDouble));
    }
    const std::vector<T> expected = test::run_graph(graph_of(c, {DType::f64, DType::f64}), wide);
    for (std::size_t o = 0; o < modes.size(); ++o) runner.output(o).fill_(1);
    for (int run = 1; run <= 2; ++run) {
      const std::int64_t before = launches(c.kernel.c_str());
      runner.run();
      EXPECT_GT(launches(c.kernel.c_str()), before) << c.op;
      for (std::size_t o = 0; o < modes.size(); ++o) {
        const T wanted = modes[o] == ResultMode::add ? expected[o] * run + 1 : expected[o];
        EXPECT_LT(worst_excess(runner.output(o).cpu(), wanted), 1) << c.op << ", output " << o << ", run " << run;
      }
    }
  }
}

// A grid has fewer blocks than that.
TEST(OwnKernels, MoreRowsThanBlocks) {
  std::mt19937_64 random(4);
  constexpr std::int64_t rows = 8'300;
  expect_as_in_f64({"embedding", "embedding", {{Of::data, {5, 2}}, {Of::index, {rows}, 0, 5}}}, {DType::f32, DType::f32}, random);
  expect_as_in_f64(
      {"cross_entropy", "cross_entropy", {{Of::data, {rows, 3}}, {Of::index, {rows}, 0, 3}}, {{"ignore_index", std::int64_t{1}}}},
      {DType::bf16, DType::bf16}, random);
  const Operand x{Of::data, {rows, 3}}, statistic{Of::statistic, {rows, 1}, 0.5, 2}, weight{Of::weight, {3}};
  expect_as_in_f64({"native_layer_norm_backward", "row_norm_backward", {x, x, statistic, statistic, weight, weight}},
                   {DType::f32, DType::f32}, random);
}

TEST(OwnKernels, DrawTheBitsOfTheHost) {
  const std::string key = "graph @g(%seed: i64[], %step: i64[]) -> (i64[]) {\n%0: i64[] = random_key(%seed, %step) {op=-7}\nreturn %0\n}";
  const std::string dropout =
      "graph @g(%x: f32[5,SIZE], %key: i64[], %rows: i64[5], %at: i64[5]) -> (f32[5,SIZE]) {\n"
      "%0: f32[5,SIZE] = dropout(%x, %key, %rows, %at) {p=0.3PLACES}\nreturn %0\n}";
  std::mt19937_64 random(5);
  const auto compare = [](const std::string& kernel, const std::string& text, const std::vector<T>& inputs) {
    const Graph graph = parse_graph("penstock graph 1\n" + text);
    const std::int64_t before = launches(kernel.c_str());
    const std::vector<T> found = test::run_graph(graph, inputs, open_device("standin")), expected = test::run_graph(graph, inputs);
    EXPECT_EQ(launches(kernel.c_str()), before + 1);
    EXPECT_TRUE(found[0].equal(expected[0])) << text;
  };
  const auto integer = [](std::int64_t x) { return at::full({}, x, at::kLong); };
  compare("random_key", key, {integer(-5), integer(std::int64_t{1} << 40)});
  for (const auto& [size, places] :
       std::vector<std::pair<std::string, std::string>>{{"7", ""}, {"64", ""}, {"6", ", inner=[3], whole=[9], begin=[3]"}}) {
    std::string text = dropout;
    for (const auto& [what, with] : {std::pair("SIZE", size), {"PLACES", places}})
      for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what))
        text.replace(at, std::string(what).size(), with);
    const T x = test::random_tensor(random, {DType::f32, {5, std::stoll(size)}});
    const T rows = test::random_tensor(random, {DType::i64, {5}}, 0, 1000), at = test::random_tensor(random, {DType::i64, {5}}, 0, 50);
    compare("dropout", text, {x, integer(std::int64_t{-3} << 33), rows, at});
  }
}

// Nothing is written where it does not belong, and the host is told at the step's end; so it is where the op is one of ATen's operators, as
// those of f64 are.
TEST(OwnKernels, SayWhatIndexIsWrong) {
  std::mt19937_64 random(6);
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto failure = [&](const Case& c, const std::vector<T>& inputs) {
      return message_of([&] { test::run_graph(graph_of(c, {dtype, dtype}), inputs, open_device("standin")); });
    };
    const Operand rows{Of::data, {3, 4}}, indices{Of::index, {3}};
    const T three = test::random_tensor(random, {dtype, {3, 4}}), four = test::random_tensor(random, {dtype, {4, 4}});
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{4}, std::int64_t{1} << 50}) {
      const T at = at::tensor({std::int64_t{1}, wrong, std::int64_t{2}});
      EXPECT_EQ(failure({"cross_entropy", "", {rows, indices}, {{"ignore_index", std::int64_t{-100}}}}, {three, at}),
                concat("cross_entropy: target ", wrong, " is outside its 4 classes\n  hint: targets to leave out are -100"));
      const std::string outside =
          concat("embedding: index ", wrong, " is outside its 4 rows\n  hint: is a token outside the model's vocabulary?");
      EXPECT_EQ(failure({"embedding", "", {{Of::data, {4, 4}}, indices}}, {four, at}), outside);
      EXPECT_EQ(failure({"embedding_dense_backward", "", {rows, indices}, {{"num_weights", std::int64_t{4}}}}, {three, at}), outside);
    }
  }
}

}  // namespace
}  // namespace penstock
