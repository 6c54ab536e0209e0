// SPDX-License-Identifier: Apache-2.0
// The values of the optimiser's graph code (src/step/trace/optimiser.cpp).
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/optimiser.h"
#include "penstock/step.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using test::run_graph;
using Tensors = std::vector<Tensor>;

double learning_rate(std::int64_t step, const OptimiserOptions& options) {
  const Graph graph =
      trace("rate", {{"step", {DType::i64, {}}}}, [&](const Tensors& in) -> Tensors { return {learning_rate_schedule(in[0], options)}; });
  return run_graph(graph, {at::full({}, step, at::kLong)})[0].item().toDouble();
}

TEST(LearningRate, RisesThenFallsAlongACosine) {
  OptimiserOptions options;
  options.learning_rate = 2e-3;
  options.final_fraction = 0.1;
  options.warmup = 20;
  options.steps = 220;
  EXPECT_NEAR(learning_rate(1, options), 1e-4, 1e-9);
  EXPECT_NEAR(learning_rate(20, options), 2e-3, 1e-9);
  EXPECT_NEAR(learning_rate(120, options), 1.1e-3, 1e-9);  // half-way between 2e-3 and 2e-4
  EXPECT_NEAR(learning_rate(220, options), 2e-4, 1e-9);
  EXPECT_NEAR(learning_rate(1000, options), 2e-4, 1e-9);
}

TEST(LearningRate, NeedsNoWarmUp) {
  OptimiserOptions options;
  options.warmup = 0;
  options.steps = 100;
  EXPECT_NEAR(learning_rate(50, options), 1e-3 * 0.55, 1e-9);
}

TEST(LearningRate, FallsAsItsDecaySays) {
  OptimiserOptions options;
  options.warmup = 20;
  options.steps = 220;
  options.decay = "linear";
  EXPECT_NEAR(learning_rate(10, options), 5e-4, 1e-9);
  EXPECT_NEAR(learning_rate(120, options), 5.5e-4, 1e-9);
  EXPECT_NEAR(learning_rate(220, options), 1e-4, 1e-9);
  EXPECT_NEAR(learning_rate(1000, options), 1e-4, 1e-9);
  options.decay = "wsd";
  EXPECT_NEAR(learning_rate(10, options), 5e-4, 1e-9);
  EXPECT_NEAR(learning_rate(198, options), 1e-3, 1e-9);
  EXPECT_NEAR(learning_rate(209, options), 5.5e-4, 1e-9);  // a tenth of 220 steps
  EXPECT_NEAR(learning_rate(220, options), 1e-4, 1e-9);
  options.decay_steps = 100;
  EXPECT_NEAR(learning_rate(120, options), 1e-3, 1e-9);
  EXPECT_NEAR(learning_rate(170, options), 5.5e-4, 1e-9);
  options.decay = "cosine";
  EXPECT_NEAR(learning_rate(120, options), 1e-3, 1e-9);
  EXPECT_NEAR(learning_rate(170, options), 5.5e-4, 1e-9);
  options.decay = "constant";
  EXPECT_NEAR(learning_rate(10, options), 5e-4, 1e-9);
  EXPECT_NEAR(learning_rate(1000, options), 1e-3, 1e-9);
}

TEST(LearningRate, StaysFiniteWhereAllStepsAreWarmUp) {
  OptimiserOptions options;
  options.warmup = 50;
  options.steps = 10;
  EXPECT_NEAR(learning_rate(10, options), 1e-3 * 0.2, 1e-9);
}

// Parameter, first and second moment after a step of adamw with these betas, from moments of zero.
std::vector<at::Tensor> stepped(at::ScalarType dtype, double beta1, double beta2) {
  const Attributes attributes = {{"beta1", beta1}, {"beta2", beta2}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  const DType of = dtype == at::kFloat ? DType::f32 : DType::f64;
  const Graph graph = trace(
      "step",
      {{"p", {of, {40}}}, {"g", {of, {40}}}, {"m", {of, {40}}}, {"v", {of, {40}}}, {"rate", {DType::f32, {}}}, {"step", {DType::i64, {}}}},
      [&](const Tensors& in) -> Tensors { return emit_all("adamw", in, attributes); });
  const at::Tensor x = at::linspace(-1, 2, 40, dtype), none = at::zeros({40}, dtype);
  return run_graph(graph, {x, x * 0.3 + 0.01, none, none, at::full({}, 0.01, at::kFloat), at::full({}, 1, at::kLong)});
}

// 1 - beta is what it is in f64, whatever the parameters' dtype: with 0.99999999 f32 has 1 for beta and trained nothing.
TEST(Adamw, BetasNextToOneTrain) {
  for (const auto [beta1, beta2] : {std::pair(0.9, 0.999), {0.99999999, 0.999}, {0.9, 0.999999999}}) {
    const std::vector<at::Tensor> found = stepped(at::kFloat, beta1, beta2), expected = stepped(at::kDouble, beta1, beta2);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(test::relative_difference(found[i], expected[i]), 1e-6) << beta1 << " " << beta2 << " " << i;
  }
}

// One update of an optimiser's row, of a matrix, in f64.
std::vector<at::Tensor> updated(const OptimiserInfo& row, bool fused) {
  const TensorType matrix{DType::f64, {5, 3}};
  std::vector<std::pair<std::string, TensorType>> inputs = {
      {"p", matrix}, {"g", matrix}, {"rate", {DType::f32, {}}}, {"step", {DType::i64, {}}}};
  for (const auto& [kept, type] : row.kept(matrix)) inputs.emplace_back(kept, type);
  const Graph graph = trace("update", inputs, [&](const Tensors& in) -> Tensors {
    const ParameterGroup numbers;
    const Updated by_graph = row.update({in[0], in[1], {in.begin() + 4, in.end()}, in[2], in[3], numbers});
    Tensors out = by_graph.kept, operands = {in[0], in[1]};
    out.insert(out.begin(), by_graph.parameter);
    if (!fused) return out;
    operands.insert(operands.end(), in.begin() + 4, in.end());
    operands.push_back(in[2]);
    if (row.fused->reads_step) operands.push_back(in[3]);
    Attributes attributes;
    for (const UpdateNumber& each : update_numbers()) attributes[std::string(each.name)] = numbers.*each.value;
    return emit_all(row.fused->op, operands, attributes);
  });
  std::mt19937_64 random(3);
  std::vector<at::Tensor> in;
  for (const auto& [name, type] : inputs)
    in.push_back(type == TensorType{DType::i64, {}} ? at::full({}, 5, at::kLong) : test::random_tensor(random, type, 0.1));
  return run_graph(graph, in);
}

TEST(Optimisers, FusedOpsDoWhatTheirGraphsDo) {
  for (const OptimiserInfo& row : optimisers()) {
    if (!row.fused) continue;
    const std::vector<at::Tensor> expected = updated(row, false), found = updated(row, true);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_LT(test::relative_difference(found[i], expected[i]), 1e-12) << row.name << i;
  }
}

// Gradients a and b of ones times `value`: the norm, and a clipped to a norm of 1.
std::pair<double, double> clipped(double value) {
  const Graph graph = trace("clip", {{"a", {DType::f64, {3}}}, {"b", {DType::f64, {1}}}}, [](const Tensors& in) -> Tensors {
    Parameters gradients;
    gradients.set("a", in[0]);
    gradients.set("b", in[1]);
    const Tensor norm = global_norm(gradients);
    return {norm, clip_by_global_norm(gradients, norm, 1)["a"]};
  });
  const auto out = run_graph(graph, {at::full({3}, value, at::kDouble), at::full({1}, value, at::kDouble)});
  return {out[0].item().toDouble(), out[1][0].item().toDouble()};
}

TEST(ClipByGlobalNorm, ScalesOnlyWhatIsTooLong) {
  EXPECT_EQ(clipped(2), (std::pair{4.0, 0.5}));
  EXPECT_EQ(clipped(0.25), (std::pair{0.5, 0.25}));
}

TEST(ClipByGlobalNorm, HidesNothingThatIsNotFinite) {
  EXPECT_TRUE(std::isnan(clipped(std::numeric_limits<double>::quiet_NaN()).first));
  EXPECT_TRUE(std::isnan(clipped(std::numeric_limits<double>::quiet_NaN()).second));
  EXPECT_TRUE(std::isinf(clipped(std::numeric_limits<double>::infinity()).first));
}

UpdateOp adamw_op(std::vector<Tensor> operands) {
  return {"adamw", std::move(operands), {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}};
}

// adamw as a graph over tensors of n elements and the scalars of an update: "whole", or a half of it.
Graph update_graph(const std::string& which, DType dtype, std::int64_t n) {
  const TensorType x{dtype, {n}}, scalar{dtype, {}}, rate{DType::f32, {}}, step{DType::i64, {}};
  std::vector<std::pair<std::string, TensorType>> inputs = {
      {"p", x}, {"g", x}, {"m", x}, {"v", x}, {"rate", rate}, {"step", step}, {"assumed", scalar}, {"factor", scalar}};
  if (which == "validated") inputs.insert(inputs.begin(), {{"p'", x}, {"m'", x}, {"v'", x}});
  return trace("update", inputs, [&](const Tensors& in) -> Tensors {
    if (which == "validated") {
      const UpdateOp op = adamw_op({in[3], in[4], in[5], in[6], in[7], in[8]});
      return update_validated(op, {in[0], in[1], in[2], in[3], in[5], in[6]}, in[9], in[10]);
    }
    if (which == "ahead") return update_ahead(adamw_op({in[0], in[1], in[2], in[3], in[4], in[5]}), in[6]);
    const AdamWState r = adamw({in[0], in[2], in[3]}, in[1] * in[7], in[4], in[5], {});
    return {r.parameter, r.first, r.second};
  });
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// Runs the only op of a graph on tensors, with its results where they are asked for.
void run_op(const Graph& graph, const std::vector<at::Tensor>& operands, const std::vector<at::Tensor>& results) {
  const Op& op = graph.ops.at(0);
  find_kernel(op.name)->bind({graph, op, std::span(operands).first(op.operands.size()), results})();
}

void expect_bits_of_one_update(std::mt19937_64& random, DType dtype, std::int64_t n, double factor) {
  const TensorType x{dtype, {n}};
  std::vector<at::Tensor> in;  // p, g, m, v, rate, step, assumed, factor
  for (int i = 0; i < 4; ++i) in.push_back(test::random_tensor(random, x, i == 3 ? 0 : -1));
  in.push_back(at::full({}, 0.01, at::kFloat));
  in.push_back(at::full({}, 3, at::kLong));
  for (const double f : {0.125, factor}) in.push_back(at::full({}, f, in[0].scalar_type()));
  const std::vector<at::Tensor> expected = run_graph(update_graph("whole", dtype, n), in);

  const std::vector<at::Tensor> state = {in[0].clone(), in[2].clone(), in[3].clone()};
  std::vector<at::Tensor> results = state;
  for (int i = 0; i < 3; ++i) results.push_back(at::full({n}, -1, in[0].scalar_type()));
  run_op(update_graph("ahead", dtype, n), {state[0], in[1], state[1], state[2], in[4], in[5], in[6], in[7]}, results);
  const std::vector<at::Tensor> operands = {state[0],   state[1], state[2], results[3], in[1], results[4],
                                            results[5], in[4],    in[5],    in[6],      in[7]};
  const Graph validated = update_graph("validated", dtype, n);
  const std::vector<at::Tensor> elsewhere = run_graph(validated, operands);
  run_op(validated, operands, state);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(results[i + 3], in[i == 0 ? 0 : i + 1])) << "kept " << i;
    EXPECT_TRUE(same_bits(state[i], expected[i])) << "in place " << i;
    EXPECT_TRUE(same_bits(elsewhere[i], expected[i])) << "elsewhere " << i;
  }
}

// Sizes around the vectors' lengths and the kernel's parts; a factor that stands, ones that clip, and those of norms that are not finite.
TEST(ValidatedUpdate, HasTheBitsOfOneUpdate) {
  std::mt19937_64 random(7);
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {1, 15, 16, 1023, 1024, 1025, 3000})
      for (const double factor : {0.125, 0.03, 0.0, std::nan("")}) {
        SCOPED_TRACE(concat(name(dtype), ", ", n, " elements, factor ", factor));
        expect_bits_of_one_update(random, dtype, n, factor);
      }
}

// A step that was validated and stood is not touched again: not even by what would be there if it were made anew.
TEST(ValidatedUpdate, TouchesNothingThatStands) {
  std::mt19937_64 random(8);
  std::vector<at::Tensor> in;
  for (int i = 0; i < 7; ++i) in.push_back(test::random_tensor(random, {DType::f32, {20}}));
  in.push_back(at::full({}, 0.01, at::kFloat));
  in.push_back(at::full({}, 3, at::kLong));
  for (int i = 0; i < 2; ++i) in.push_back(at::full({}, 0.5, at::kFloat));
  const at::Tensor before = in[0].clone();
  run_op(update_graph("validated", DType::f32, 20), in, {in[0], in[1], in[2]});
  EXPECT_TRUE(same_bits(in[0], before));
}

}  // namespace
}  // namespace penstock
