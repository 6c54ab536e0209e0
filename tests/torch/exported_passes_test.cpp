// SPDX-License-Identifier: Apache-2.0
// The passes over joint graphs in values: micro-batches with counts, carried buffers and drawn masks give what the whole
// batch gives by name.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/text.h"
#include "exported/batch_counts.h"
#include "exported/carried.h"
#include "exported/randomness.h"
#include "exported/rename.h"
#include "support/errors.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;

std::vector<T> random_inputs(const Graph& graph, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> out;
  for (ValueId input : graph.inputs) out.push_back(test::random_tensor(random, graph.type(input), 0, 3));
  return out;
}

T integer(std::int64_t value) {
  return at::full({}, value, at::TensorOptions(at::kLong));
}

// A classifier of N samples and its gradient, by name.
Graph classifier(std::int64_t samples) {
  return parse_graph(std::regex_replace(std::string(R"(penstock graph 1
graph @joint(%x: f64[N,5], %targets: i64[N], %w: f64[5,3]) -> (f64[], f64[5,3]) {
  %0: f64[] = full() {size=[], fill_value=1.0, dtype=f64, phase="backward"}
  %1: f64[N,3] = aten::mm(%x, %w)
  %2: f64[N,3] = aten::_log_softmax(%1) {dim=1, half_to_float=false}
  %3: f64[], %4: f64[] = aten::nll_loss_forward(%2, %targets) {reduction=1, ignore_index=1, none=[2]}
  %5: f64[N,3] = aten::nll_loss_backward(%0, %2, %targets, %4) {reduction=1, ignore_index=1, none=[3], phase="backward"}
  %6: f64[N,3] = aten::_log_softmax_backward_data(%5, %2) {dim=1, input_dtype=f64, phase="backward"}
  %7: f64[5,N] = aten::t(%x) {phase="backward"}
  %8: f64[5,3] = aten::mm(%7, %6) {phase="backward"}
  return %3, %8
})"),
                                        std::regex("N"), concat(samples)));
}

// One of the micro-batches has no target that counts.
TEST(ExportedPasses, MicroBatchesOfUnequalCountsGiveTheWholeBatchsLossAndGradient) {
  constexpr std::int64_t kBatch = 8, kParts = 4;
  const Graph whole = classifier(kBatch);
  std::vector<T> inputs = random_inputs(whole, 5);
  inputs[1].copy_(at::cat({at::full({2}, 1, inputs[1].options()), at::full({3}, 2, inputs[1].options()), inputs[1].narrow(0, 0, 3)}));
  const std::vector<T> wanted = test::run_graph(whole, inputs);

  const BatchCounts counted = batch_counts(rename_ops(classifier(kBatch / kParts)), {{"x", "targets"}, {}});
  const auto part = [&](const T& x, std::int64_t i) { return x.narrow(0, i * kBatch / kParts, kBatch / kParts); };
  ASSERT_EQ(counted.counts.size(), 1);
  ASSERT_EQ(counted.counts[0].inputs.size(), 1);
  ASSERT_EQ(counted.shares, std::vector<int>{1});
  T sum = integer(0), loss, gradient;
  for (std::int64_t i = 0; i < kParts; ++i) sum = sum + test::run_graph(counted.counts[0], {part(inputs[1], i)})[0];
  const T count = test::run_graph(counted.divisors, {sum})[0].div(kParts);
  for (std::int64_t i = 0; i < kParts; ++i) {
    const std::vector<T> results = test::run_graph(counted.joint, {part(inputs[0], i), part(inputs[1], i), inputs[2], count});
    loss = i == 0 ? results[0] : loss + results[0];
    gradient = i == 0 ? results[1] : gradient + results[1];
  }
  EXPECT_LT(test::relative_difference(loss.div(kParts), wanted[0]), 1e-11);
  EXPECT_LT(test::relative_difference(gradient.div(kParts), wanted[1]), 1e-11);
}

// Batch norm's statistics and counter, one micro-batch after the other by name and as what each adds.
TEST(ExportedPasses, CarriedBuffersEndWhereTheModuleLeavesThem) {
  const Graph graph = parse_graph(R"(penstock graph 1
graph @joint(%x: f64[4,3,2,2], %mean: f64[3], %var: f64[3], %batches: i64[]) -> (f64[4,3,2,2], f64[3], f64[3], i64[]) {
  %0: f64[4,3,2,2], %1: f64[3], %2: f64[3], %3: f64[3], %4: f64[3] = aten::_native_batch_norm_legit_functional(%x, %mean, %var) {none=[1, 2], training=true, momentum=0.1, eps=1e-05}
  %5: i64[] = full() {size=[], fill_value=1, dtype=i64}
  %6: i64[] = aten::add.Tensor(%batches, %5) {alpha=1}
  return %0, %3, %4, %6
})");
  const CarriedBuffers carried = carried_buffers(rename_ops(graph), {{1, "mean"}, {2, "var"}, {3, "batches"}});
  const std::vector<T> first = random_inputs(graph, 1);
  std::vector<T> by_name(first.begin() + 1, first.end()), by_parts = by_name;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<T> inputs = {random_inputs(graph, seed)[0]};
    inputs.insert(inputs.end(), by_name.begin(), by_name.end());
    const std::vector<T> results = test::run_graph(graph, inputs), added = test::run_graph(carried.joint, inputs);
    for (std::size_t b = 0; b < 3; ++b) {
      by_name[b] = results[b + 1];
      by_parts[b] = (by_parts[b] * carried.buffers[b].keep + added.at(carried.buffers[b].added.value())).to(by_name[b].scalar_type());
    }
  }
  for (std::size_t b = 0; b < 3; ++b) EXPECT_LT(test::relative_difference(by_parts[b], by_name[b]), 1e-11) << carried.buffers[b].name;
}

// A dropout of rows of samples, a mask for each sample, and the masks that the backward reads.
Graph random_graph(std::int64_t samples) {
  const std::string n = concat(samples), rows = concat(3 * samples);
  const std::string text = R"(penstock graph 1
graph @joint(%x: f32[N,300], %y: f32[R,70]) -> (f32[N,300], f32[N,300], f32[R,70], f32[N,1], bool[N,300]) {
  %0: f32[N,300], %1: bool[N,300] = aten::native_dropout(%x) {p=0.3, train=true}
  %2: f32[N,300] = aten::native_dropout_backward(%x, %1) {scale=1.4285714285714286}
  %3: f32[R,70], %4: bool[R,70] = aten::native_dropout(%y) {p=0.3, train=true}
  %5: f32[N,1] = full() {size=[N, 1], fill_value=0, dtype=f32}
  %6: f32[N,1] = aten::bernoulli.p(%5) {p=0.5}
  %7: f32[N,300] = aten::rand_like(%x)
  %8: bool[N,300] = lt(%7) {other=0.3}
  return %0, %2, %3, %6, %8
})";
  return draw_by_counters(rename_ops(parse_graph(std::regex_replace(std::regex_replace(text, std::regex("N"), n), std::regex("R"), rows))),
                          samples);
}

TEST(ExportedPasses, DrawsDoNotDependOnHowABatchIsCut) {
  constexpr std::int64_t kBatch = 12;
  std::vector<T> inputs = random_inputs(random_graph(kBatch), 1);
  inputs[2].copy_(at::cat({integer(7).view({1}), inputs[2].narrow(0, 0, kBatch - 1)}));
  for (std::int64_t i = 0; i < kBatch; ++i) inputs[2].select(0, i).fill_(i);
  const std::vector<T> whole = test::run_graph(random_graph(kBatch), inputs);
  for (const std::int64_t parts : {2, 3, 12}) {
    std::vector<std::vector<T>> results(whole.size());
    for (std::int64_t i = 0; i < parts; ++i) {
      const auto part = [&](const T& x) { return x.dim() == 0 ? x : x.narrow(0, i * x.size(0) / parts, x.size(0) / parts); };
      std::vector<T> operands;
      for (const T& input : inputs) operands.push_back(part(input));
      const std::vector<T> given = test::run_graph(random_graph(kBatch / parts), operands);
      for (std::size_t r = 0; r < given.size(); ++r) results[r].push_back(given[r]);
    }
    for (std::size_t r = 0; r < whole.size(); ++r) EXPECT_TRUE(at::cat(results[r]).equal(whole[r])) << parts << " parts, result " << r;
  }
  EXPECT_TRUE(whole[0].equal(whole[1])) << "the backward's mask is the forward's";
  // There are 3,600 elements, dropped with probability 0.3; the tolerance is four deviations.
  EXPECT_NEAR(whole[0].eq(0).sum().item().toDouble() / 3600, 0.3, 0.031);
  EXPECT_NEAR(whole[4].sum().item().toDouble() / 3600, 0.3, 0.031);
  const T other = test::run_graph(random_graph(kBatch), [&] {
    std::vector<T> changed = inputs;
    changed[4] = changed[4] + 1;
    return changed;
  }())[0];
  EXPECT_FALSE(other.equal(whole[0])) << "another step draws other numbers";
}

bool is_attention(const std::string& name) {
  return name.find("attention") != std::string::npos || name.find("fused_sdp") != std::string::npos;
}

// Attention draws only where it has a dropout, and softmax of nested tensors is marked for no reason; the others are taken or refused.
TEST(ExportedPasses, EveryRandomOpOfTheDispatcherIsKnown) {
  const std::vector<std::string> taken = {"aten::native_dropout", "aten::bernoulli", "aten::rand", "aten::rand_like", "aten::uniform"};
  int refused = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || name.name.rfind("aten::", 0) != 0 || handle->schema().is_mutable()) continue;
    if (!handle->hasTag(at::Tag::nondeterministic_seeded) || is_attention(name.name)) continue;
    if (std::ranges::count(taken, name.name) != 0 || name.name == "aten::_nested_tensor_softmax_with_shape") continue;
    const std::string op = name.overload_name.empty() ? name.name : concat(name.name, ".", name.overload_name);
    const std::string text = concat("penstock graph 1\ngraph @g() -> (f32[2]) {\n  %0: f32[2] = ", op, "()\n  return %0\n}\n");
    EXPECT_EQ(test::message_of([&] { draw_by_counters(parse_graph(text), 2); }).find(concat("op \"", op, "\" draws")), 0) << op;
    ++refused;
  }
  EXPECT_GT(refused, 40);
}

}  // namespace
}  // namespace penstock
