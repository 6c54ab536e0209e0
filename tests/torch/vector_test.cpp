// SPDX-License-Identifier: Apache-2.0
// Our own loops against libtorch in f64, for every instruction set of this machine and sizes that fit no vector.
#include "torch/vector.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/philox.h"
#include "base/text.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using test::relative_difference;
using T = at::Tensor;

const std::int64_t kSizes[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257};

float* floats(const T& x) {
  return static_cast<float*>(x.data_ptr());
}
T wide(const T& x) {
  return x.to(at::kDouble);
}

class VectorTest : public testing::TestWithParam<const VectorKernels*> {
 protected:
  T normal(Shape shape, double low = -2, double high = 2) {
    return test::random_tensor(random_, {DType::f32, std::move(shape)}, low, high);
  }
  void expect_near(const T& found, const T& expected, double tolerance, const std::string& what) {
    EXPECT_LT(relative_difference(found, expected), tolerance) << what;
  }
  const VectorKernels& kernels() const { return *GetParam(); }
  std::mt19937_64 random_{7};
};

TEST_P(VectorTest, Elementwise) {
  for (std::int64_t n : kSizes) {
    const T x = normal({n}, -6, 6), d = normal({n}), out = at::empty({n}), y = wide(x), e = wide(d);
    const std::string size = concat("n ", n);
    kernels().add(floats(x), floats(d), floats(out), n);
    expect_near(out, y + e, 1e-7, "add " + size);
    kernels().mul(floats(x), floats(d), floats(out), n);
    expect_near(out, y * e, 1e-7, "mul " + size);
    kernels().scale(floats(x), 0.3f, floats(out), n);
    expect_near(out, y * 0.3f, 1e-7, "scale " + size);
    const float* parts[] = {floats(x), floats(d), floats(x)};
    kernels().add_n(parts, 3, floats(out), n);
    expect_near(out, y + e + y, 2e-7, "add_n " + size);
    for (const char* approximate : {"none", "tanh"}) {
      const bool tanh = approximate[0] == 't';
      kernels().gelu(floats(x), floats(out), n, tanh);
      expect_near(out, at::gelu(y, approximate), 1e-6, "gelu " + size);
      kernels().gelu_backward(floats(d), floats(x), floats(out), n, tanh);
      expect_near(out, at::gelu_backward(e, y, approximate), 2e-6, "gelu_backward " + size);
    }
    kernels().silu(floats(x), floats(out), n);
    expect_near(out, at::silu(y), 1e-6, "silu " + size);
    kernels().silu_backward(floats(d), floats(x), floats(out), n);
    expect_near(out, at::silu_backward(e, y), 1e-6, "silu_backward " + size);
  }
}

// Far from zero too: relative to each element, not to the largest.
TEST_P(VectorTest, GeluIsAccurateEverywhere) {
  const T x = at::linspace(-9, 9, 20001, at::TensorOptions(at::kFloat)), out = at::empty_like(x);
  kernels().gelu(floats(x), floats(out), x.numel(), false);
  const T expected = at::gelu(wide(x)), tail = 0.5 * wide(x) * (wide(x) * -0.70710678118654752440).erfc();
  const T exact = at::where(x < 0, tail, expected);
  EXPECT_LT(((wide(out) - exact).abs() / (exact.abs() + 1e-12)).max().item().toDouble(), 5e-6);
}

// Rows of zero and one number below it: to where its exponential is no normal number, and none at all.
TEST_P(VectorTest, SoftmaxIsAccurateFarBelowTheLargest) {
  const T low = at::linspace(-87, 0, 20001, at::TensorOptions(at::kFloat)), x = at::stack({at::zeros_like(low), low}, 1).contiguous();
  const T y = at::empty_like(x), expected = at::softmax(wide(x), 1);
  kernels().softmax(floats(x), floats(y), {x.size(0), 2}, false);
  EXPECT_LT(((wide(y) - expected).abs() / expected).max().item().toDouble(), 4e-6);
  for (const float none : {-105.0f, -1e30f, -INFINITY}) {
    const float row[] = {0, none};
    float found[2];
    kernels().softmax(row, found, {1, 2}, false);
    EXPECT_EQ(found[0], 1);
    EXPECT_EQ(found[1], 0);
  }
}

TEST_P(VectorTest, KeepsNanAndInfinity) {
  const float inf = INFINITY, nan = NAN;
  float x[] = {nan, inf, -inf, 200, -200, 0}, out[6];
  kernels().silu(x, out, 6);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], inf);
  EXPECT_EQ(out[3], 200);
  EXPECT_EQ(out[4], 0);
  const float ones[] = {1, 1, 1, 1, 1, 1};
  kernels().gelu(x, out, 6, false);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], inf);
  EXPECT_EQ(out[2], 0);
  EXPECT_EQ(out[3], 200);
  EXPECT_EQ(out[4], 0);
  kernels().gelu_backward(ones, x, out, 6, false);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 1);
  EXPECT_EQ(out[2], 0);
  EXPECT_NEAR(out[5], 0.5, 1e-6);
  float logits[] = {0, nan, 1, 0, inf, 1, 0, -inf, 1};
  const std::int64_t targets[] = {0, 0, 0};
  EXPECT_TRUE(std::isnan(kernels().cross_entropy(logits, targets, nullptr, {1, 3}, -100)));
  EXPECT_FALSE(std::isfinite(kernels().cross_entropy(logits + 3, targets, nullptr, {1, 3}, -100)));
  EXPECT_NEAR(kernels().cross_entropy(logits + 6, targets, nullptr, {1, 3}, -100), std::log(1 + std::exp(1.0)), 1e-6);
  // A logsumexp of nothing but -inf is that, and hides no NaN.
  const float rows[] = {-inf, -inf, -inf, -inf, nan, -inf, nan, nan, nan, 1, nan, -inf, -inf, 2, -inf};
  float sums[5];
  kernels().logsumexp(rows, sums, {5, 3});
  EXPECT_EQ(sums[0], -inf);
  for (int r : {1, 2, 3}) EXPECT_TRUE(std::isnan(sums[r])) << r;
  EXPECT_EQ(sums[4], 2);
}

TEST_P(VectorTest, Rows) {
  for (std::int64_t width : kSizes)
    for (std::int64_t rows : {1, 2, 5, 9}) {
      const T x = normal({rows, width}), bias = normal({width}), out = at::empty({rows, width}), sums = at::ones({width});
      const NormShape shape{rows, width};
      const std::string size = concat(rows, " x ", width);
      kernels().add_bias(floats(x), floats(bias), floats(out), shape);
      expect_near(out, wide(x) + wide(bias), 1e-7, "add_bias " + size);
      kernels().column_sum(floats(x), floats(sums), shape, true);
      expect_near(sums, wide(x).sum(0) + 1, 1e-6, "column_sum, added, " + size);
      kernels().column_sum(floats(x), floats(sums), shape, false);
      EXPECT_LT((sums - x.sum(0)).abs().max().item().toDouble(), 1e-5) << size;
    }
}

TEST_P(VectorTest, LayerNorm) {
  for (std::int64_t width : kSizes)
    for (bool affine : {false, true}) {
      const std::int64_t rows = 5;
      const T x = normal({rows, width}) + 3, w = normal({width}), b = normal({width}), dy = normal({rows, width});
      const T y = at::empty_like(x), mean = at::empty({rows}), rstd = at::empty({rows}), dx = at::empty_like(x);
      const T dw = at::ones({width}), db = at::ones({width});
      const std::optional<T> weight = affine ? std::optional<T>(wide(w)) : std::nullopt,
                             bias = affine ? std::optional<T>(wide(b)) : std::nullopt;
      kernels().layer_norm(floats(x), affine ? floats(w) : nullptr, affine ? floats(b) : nullptr, floats(y), floats(mean), floats(rstd),
                           {rows, width}, 1e-2f);
      const auto [y2, mean2, rstd2] = at::native_layer_norm(wide(x), {width}, weight, bias, 1e-2f);
      expect_near(y, y2, 2e-5, concat("y, width ", width));
      expect_near(mean, mean2.view({rows}), 1e-6, "mean");
      expect_near(rstd, rstd2.view({rows}), 1e-5, "rstd");
      kernels().layer_norm_backward(floats(dy), floats(x), floats(mean), floats(rstd), affine ? floats(w) : nullptr, floats(dx),
                                    affine ? floats(dw) : nullptr, affine ? floats(db) : nullptr, {rows, width}, true);
      const auto [dx2, dw2, db2] =
          at::native_layer_norm_backward(wide(dy), wide(x), {width}, mean2, rstd2, weight, bias, {true, affine, affine});
      EXPECT_LT((wide(dx) - dx2).abs().max().item().toDouble(), 2e-4) << width;
      if (!affine) continue;
      expect_near(dw, dw2 + 1, 2e-5, "dweight");
      expect_near(db, db2 + 1, 2e-6, "dbias");
    }
}

TEST_P(VectorTest, Softmax) {
  for (std::int64_t width : kSizes)
    for (bool log : {false, true}) {
      const T x = normal({4, width}, -9, 9), y = at::empty_like(x), dy = normal({4, width}), dx = at::empty_like(x);
      kernels().softmax(floats(x), floats(y), {4, width}, log);
      const T expected = log ? at::log_softmax(wide(x), 1) : at::softmax(wide(x), 1);
      expect_near(y, expected, 2e-6, concat("softmax, width ", width));
      kernels().softmax_backward(floats(dy), floats(y), floats(dx), {4, width}, log);
      const T gradient = log ? at::_log_softmax_backward_data(wide(dy), expected, 1, at::kDouble)
                             : at::_softmax_backward_data(wide(dy), expected, 1, at::kDouble);
      EXPECT_LT((wide(dx) - gradient).abs().max().item().toDouble(), 2e-5) << width;
    }
}

TEST_P(VectorTest, CrossEntropy) {
  for (std::int64_t classes : kSizes) {
    const T logits = normal({5, classes}, -9, 9), logsumexp = at::empty({5}), d = at::empty({5, classes});
    const std::int64_t targets[] = {0, classes - 1, -100, classes / 2, 0};
    const double loss = kernels().cross_entropy(floats(logits), targets, floats(logsumexp), {5, classes}, -100);
    const T index = at::from_blob(const_cast<std::int64_t*>(targets), {5}, at::TensorOptions(at::kLong));
    EXPECT_NEAR(loss, at::cross_entropy_loss(wide(logits), index, {}, 2, -100).item().toDouble(), 1e-4) << classes;
    expect_near(logsumexp, at::logsumexp(wide(logits), {1}), 1e-6, "logsumexp");
    T expected = at::softmax(wide(logits), 1) * 0.5;
    for (std::int64_t r = 0; r < 5; ++r) targets[r] < 0 ? expected[r].zero_() : expected[r][targets[r]].sub_(0.5);
    for (const float* known : {static_cast<const float*>(floats(logsumexp)), static_cast<const float*>(nullptr)}) {
      kernels().cross_entropy_backward(floats(logits), targets, known, floats(d), {5, classes}, -100, 0, 0.5f);
      EXPECT_LT((wide(d) - expected).abs().max().item().toDouble(), 2e-6) << classes;
    }
    const T sums = at::empty({5});
    kernels().logsumexp(floats(logits), floats(sums), {5, classes});
    EXPECT_TRUE(sums.equal(logsumexp)) << classes;
    // The same classes counted from 7; the last row's target is another one.
    const std::int64_t shifted[] = {7, classes + 6, -100, classes / 2 + 7, 6};
    expected[4] = at::softmax(wide(logits[4]), 0) * 0.5;
    kernels().cross_entropy_backward(floats(logits), shifted, floats(logsumexp), floats(d), {5, classes}, -100, 7, 0.5f);
    EXPECT_LT((wide(d) - expected).abs().max().item().toDouble(), 2e-6) << classes;
  }
}

TEST_P(VectorTest, Adamw) {
  for (std::int64_t n : kSizes) {
    const T p = normal({n}), g = normal({n}), m = normal({n}), v = normal({n}, 0, 2);
    const T m2 = wide(m) * 0.9 + wide(g) * 0.1, v2 = wide(v) * 0.99 + wide(g) * wide(g) * 0.01;
    const T p2 = wide(p) * 0.999 - 0.01 * m2 / (v2.sqrt() * 2 + 1e-3);
    kernels().adamw(floats(p), floats(g), floats(m), floats(v), floats(p), floats(m), floats(v), n,
                    {0.9f, 0.99f, 1e-3f, 0.1f, 0.01f, 0.999f, 0.01f, 2.0f});
    expect_near(p, p2, 1e-6, "parameter");
    expect_near(m, m2, 1e-6, "first moment");
    expect_near(v, v2, 1e-6, "second moment");
  }
}

// Known answers of Random123, the authors' library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox(ones, ones, ones), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_P(VectorTest, Dropout) {
  const std::uint64_t row = 0x123456789abcdef, key = 0xfedcba9876543210;
  for (std::int64_t n : kSizes) {
    const T x = normal({n}, 1, 2), y = at::empty({n});
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{0xffffffff}}) {
      kernels().dropout(floats(x), floats(y), n, first, row, key, 0x60000000, 2.0f);
      for (std::int64_t e = 0; e < n; ++e) {
        const bool kept = philox(first + static_cast<std::uint64_t>(e / 4), row, key)[static_cast<std::size_t>(e % 4)] >= 0x60000000;
        EXPECT_EQ(floats(y)[e], kept ? floats(x)[e] * 2 : 0) << e << " of " << n << " from block " << first;
      }
    }
  }
}

StridedMatrix strided(const T& x) {
  return {floats(x), x.stride(0), x.stride(1)};
}

TEST_P(VectorTest, Gemm) {
  const auto pick = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random_); };
  for (int round = 0; round < 200; ++round) {
    const std::int64_t m = pick(40), n = pick(round % 2 ? 150 : 20), k = round % 10 == 0 ? pick(600) : pick(40);
    const T a = round & 1 ? normal({m, k}) : normal({k, m}).t(), b = round & 2 ? normal({k, n}) : normal({n, k}).t();
    const T bias = normal({n}), c = normal({m, n + 3}).slice(1, 0, n), before = wide(c).clone();
    const int start = static_cast<int>(pick(3));
    if (start == 1)
      kernels().gemm(m, n, k, strided(a), strided(b), floats(c), n + 3, floats(bias));
    else
      kernels().gemm_f32(m, n, k, strided(a), strided(b), floats(c), n + 3, start == 2);
    T expected = wide(a).matmul(wide(b));
    if (start == 1) expected = expected + wide(bias);
    if (start == 2) expected = expected + before;
    EXPECT_LT((wide(c) - expected).abs().max().item().toDouble(), 1e-6 * static_cast<double>(4 * k + 4)) << m << " x " << n << " x " << k;
  }
}

// How a panel of b is packed depends on the order of b's elements in memory and on how many rows a has; no sum does.
TEST_P(VectorTest, GemmHasTheSameBitsFromEveryLayout) {
  for (const auto [m, n, k] : {std::array<std::int64_t, 3>{5, 64, 40}, {13, 200, 300}, {50, 128, 515}}) {
    const T a = normal({m, k}), b = normal({k, n}), bias = normal({n});
    const auto product = [&](const T& x, const T& y) {
      const T c = at::empty({x.size(0), n});
      kernels().gemm(x.size(0), n, k, strided(x), strided(y), floats(c), n, floats(bias));
      return c;
    };
    const T all = product(a, b);
    EXPECT_TRUE(product(a, b.t().contiguous().t()).equal(all)) << m << " x " << n << " x " << k;
    EXPECT_TRUE(product(a.slice(0, 0, 2), b).equal(all.slice(0, 0, 2))) << m << " x " << n << " x " << k;
  }
}

HeadStrides strides_of(const T& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}
HeadsView<const float> read(const T& x) {
  return {floats(x), strides_of(x)};
}
HeadsView<float> write(const T& x) {
  return {floats(x), strides_of(x)};
}

TEST_P(VectorTest, Attention) {
  using Sizes = std::array<std::int64_t, 3>;
  for (auto [length, keys, head] :
       {Sizes{1, 1, 4}, {5, 5, 3}, {33, 33, 16}, {70, 70, 20}, {130, 130, 8}, {60, 60, 72}, {300, 300, 12}, {70, 9, 4}, {5, 5000, 4}})
    for (bool causal : {false, true}) {
      // As a model has them, parts of one [batch, length, 3, heads, head]; or with another count of keys.
      const T qkv = normal({2, std::max(length, keys), 3, 2, head}), d = normal({2, length, 2, head}).transpose(1, 2);
      const auto part_of = [&](const T& of, std::int64_t i) {
        return of.select(2, i).narrow(1, 0, i == 0 ? length : keys).transpose(1, 2);
      };
      const auto part = [&](std::int64_t i) { return part_of(qkv, i); };
      const T out = at::empty({2, 2, length, head}), logsumexp = at::empty({2, 2, length});
      const AttentionShape shape{2, 2, length, keys, head, causal, 0.4f};
      kernels().attention(read(part(0)), read(part(1)), read(part(2)), write(out), floats(logsumexp), shape);
      const T q = wide(part(0)), k = wide(part(1)), v = wide(part(2));
      const auto [out2, logsumexp2] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, double{0.4f});
      const std::string size = concat(length, ", ", keys, " x ", head);
      expect_near(out, out2, 2e-6, "out " + size);
      expect_near(logsumexp, logsumexp2, 2e-6, "logsumexp " + size);
      const T gradients = at::empty_like(qkv);
      const auto gradient = [&](std::int64_t i) { return part_of(gradients, i); };
      kernels().attention_backward(read(d), read(part(0)), read(part(1)), read(part(2)), read(out), floats(logsumexp), write(gradient(0)),
                                   write(gradient(1)), write(gradient(2)), shape, nullptr);
      const auto expected =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(wide(d), q, k, v, out2, logsumexp2, 0.0, causal, {}, double{0.4f});
      EXPECT_LT((wide(gradient(0)) - std::get<0>(expected)).abs().max().item().toDouble(), 2e-5) << size;
      EXPECT_LT((wide(gradient(1)) - std::get<1>(expected)).abs().max().item().toDouble(), 2e-5) << size;
      EXPECT_LT((wide(gradient(2)) - std::get<2>(expected)).abs().max().item().toDouble(), 2e-5) << size;
    }
}

// Samples of these lengths in one row, and padding; causal, whole, or to a key that comes in no order; with a bias or without.
TEST_P(VectorTest, AttentionInRanges) {
  const std::vector<std::int64_t> lengths = {1, 40, 3, 150, 33};
  const std::int64_t reach = 150, heads = 2, head = 24, length = 240;
  for (const std::string mask : {"whole", "causal", "unordered"})
    for (const bool biased : {false, true}) {
      std::vector<std::int64_t> ranges(2 * length, 0);
      std::int64_t begin = 0;
      for (const std::int64_t sample : lengths) {
        for (std::int64_t i = begin; i < begin + sample; ++i) {
          ranges[2 * i] = begin;
          ranges[2 * i + 1] = mask == "whole" ? begin + sample : mask == "causal" ? i + 1 : begin + 1 + 37 * i % sample;
        }
        begin += sample;
      }
      const T qkv = normal({1, length, 3, heads, head}), bias = normal({heads, 2 * reach - 1}), d = normal({1, heads, length, head});
      const auto part = [&](std::int64_t i) { return qkv.select(2, i).transpose(1, 2); };
      const RangesShape shape{1, heads, length, length, head, reach, ranges.data(), biased ? floats(bias) : nullptr, 0.4f};
      const T out = at::empty({1, heads, length, head}), logsumexp = at::empty({1, heads, length}), gradients = at::empty_like(qkv);
      const T dbias = at::empty_like(bias);
      kernels().attention_in_ranges(read(part(0)), read(part(1)), read(part(2)), write(out), floats(logsumexp), shape);
      const auto gradient = [&](std::int64_t i) { return gradients.select(2, i).transpose(1, 2); };
      kernels().attention_in_ranges_backward(read(d), read(part(0)), read(part(1)), read(part(2)), read(out), floats(logsumexp),
                                             write(gradient(0)), write(gradient(1)), write(gradient(2)), biased ? floats(dbias) : nullptr,
                                             shape);
      const auto leaf = [](const T& x) { return wide(x).clone().requires_grad_(true); };
      const T q = leaf(part(0)), k = leaf(part(1)), v = leaf(part(2)), b = leaf(bias);
      const T ends = at::from_blob(ranges.data(), {length, 2}, at::kLong), keys = at::arange(length),
              rows = at::arange(length).view({-1, 1});
      const T seen = keys.ge(ends.select(1, 0).view({-1, 1})).logical_and(keys.lt(ends.select(1, 1).view({-1, 1})));
      T scores = q.matmul(k.transpose(-2, -1)) * double{0.4f};
      const T places = (keys - rows + reach - 1).clamp(0, 2 * reach - 2);
      if (biased) scores = scores + b.index_select(1, places.flatten()).view({heads, length, length});
      const T expected = (at::softmax(scores.masked_fill(seen.logical_not(), -1e30), -1) * seen).matmul(v);
      expected.backward(wide(d));
      const std::string what = concat(mask, biased ? ", biased" : "");
      expect_near(out, expected.detach(), 2e-6, what);
      EXPECT_LT((wide(gradient(0)) - q.grad()).abs().max().item().toDouble(), 2e-5) << what;
      EXPECT_LT((wide(gradient(1)) - k.grad()).abs().max().item().toDouble(), 5e-5) << what;
      EXPECT_LT((wide(gradient(2)) - v.grad()).abs().max().item().toDouble(), 5e-5) << what;
      if (biased) {
        EXPECT_LT((wide(dbias) - b.grad()).abs().max().item().toDouble(), 5e-5) << what;
      }
      EXPECT_TRUE(out.narrow(2, begin, length - begin).eq(0).all().item().toBool()) << "padding attends to nothing";
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorTest, testing::ValuesIn(all_vector_kernels().begin(), all_vector_kernels().end()),
                         [](const auto& set) { return std::string(set.param->name); });

}  // namespace
}  // namespace penstock
