// The values of the optimiser's graph code (src/trace/optimiser.cpp).
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "torch/run_graph.h"
#include "trace/step.h"

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

TEST(LearningRate, StaysFiniteWhereAllStepsAreWarmUp) {
  OptimiserOptions options;
  options.warmup = 50;
  options.steps = 10;
  EXPECT_NEAR(learning_rate(10, options), 1e-3 * 0.2, 1e-9);
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

}  // namespace
}  // namespace penstock
