// SPDX-License-Identifier: Apache-2.0
// Our own loops over bf16 against libtorch in f64, for every instruction set of this machine and sizes that fit no vector.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/bf16.h"
#include "base/text.h"
#include "torch/run_graph.h"
#include "torch/vector.h"

namespace penstock {
namespace {

using T = at::Tensor;

const std::int64_t kSizes[] = {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257};
constexpr double kRounding = 1.0 / 256;  // relative: half of the last of 8 bits

Bf16* data(const T& x) {
  return static_cast<Bf16*>(x.data_ptr());
}
float* floats(const T& x) {
  return static_cast<float*>(x.data_ptr());
}
T wide(const T& x) {
  return x.to(at::kDouble);
}
T low(Shape shape) {
  return at::empty(shape, at::kBFloat16);
}

class Bf16Test : public testing::TestWithParam<const VectorKernels*> {
 protected:
  T normal(Shape shape, DType dtype = DType::bf16) { return test::random_tensor(random_, {dtype, std::move(shape)}, -2, 2); }
  // Every number is the expected one, rounded once.
  void expect_rounded(const T& found, const T& expected, const std::string& what, double slack = 1e-5) {
    const T beyond = (wide(found) - expected).abs() - (expected.abs() * kRounding + slack);
    EXPECT_LE(beyond.max().item().toDouble(), 0) << what;
  }
  void expect_near(const T& found, const T& expected, double tolerance, const std::string& what) {
    EXPECT_LT(test::relative_difference(found, expected), tolerance) << what;
  }
  const VectorKernels& kernels() const { return *GetParam(); }
  const ElementKernels<Bf16>& loops() const { return kernels().bf16; }
  std::mt19937_64 random_{7};
};

TEST_P(Bf16Test, WidensEveryNumber) {
  std::vector<Bf16> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {static_cast<std::uint16_t>(i)};
  std::vector<float> found(all.size());
  kernels().to_f32(all.data(), found.data(), std::ssize(all));
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(f32_of_bf16(static_cast<std::uint16_t>(i))));
}

TEST_P(Bf16Test, RoundsToTheNearestEven) {
  // Ties, what lies just beside them, the largest numbers, infinities and NaNs of either kind, and random bits; as whole vectors and as
  // rests.
  std::vector<float> x;
  for (std::uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u, 0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                             0x7f800001u, 0xffffffffu, 0u, 0x80000000u})
    x.push_back(std::bit_cast<float>(bits));
  while (x.size() < 4099) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random_()));
    // bf16 instructions take what is smaller for zero.
    if (!(std::fabs(value) < 2e-38f)) x.push_back(value);
  }
  for (std::int64_t n : {std::int64_t{12}, std::ssize(x)}) {
    std::vector<Bf16> found(static_cast<std::size_t>(n) + 1, Bf16{7});
    kernels().to_bf16(x.data(), found.data(), n);
    for (std::size_t i = 0; i + 1 < found.size(); ++i) {
      if (std::isnan(x[i]))
        EXPECT_TRUE(std::isnan(f32_of_bf16(found[i].bits))) << i;
      else
        EXPECT_EQ(found[i].bits, bf16_of_f32(x[i])) << x[i];
    }
    EXPECT_EQ(found.back().bits, 7) << "nothing behind the end is written";
  }
}

TEST_P(Bf16Test, Elementwise) {
  for (std::int64_t n : kSizes) {
    const T a = normal({n}), b = normal({n}), out = low({n}), x = wide(a), y = wide(b);
    const std::string size = std::to_string(n);
    const auto check = [&](const char* what, const T& expected, double slack = 1e-5) { expect_rounded(out, expected, what + size, slack); };
    loops().add(data(a), data(b), data(out), n);
    check("add", x + y);
    const Bf16* parts[] = {data(a), data(b), data(a)};
    loops().add_n(parts, 3, data(out), n);
    check("add_n", x + y + x);
    loops().mul(data(a), data(b), data(out), n);
    check("mul", x * y);
    loops().scale(data(a), 0.3f, data(out), n);
    check("scale", x * double{0.3f});
    for (bool tanh : {false, true}) {
      const char* form = tanh ? "tanh" : "none";
      loops().gelu(data(a), data(out), n, tanh);
      check("gelu", at::gelu(x, form));
      loops().gelu_backward(data(b), data(a), data(out), n, tanh);
      check("gelu_backward", at::gelu_backward(y, x, form));
    }
    loops().silu(data(a), data(out), n);
    check("silu", at::silu(x));
    loops().silu_backward(data(b), data(a), data(out), n);
    check("silu_backward", at::silu_backward(y, x));
  }
}

// Numbers of bf16 from a to b.
int steps_between(float a, float b) {
  const auto place = [](float x) {
    const int bits = bf16_of_f32(x);
    return bits < 0x8000 ? bits : 0x8000 - bits;
  };
  return std::abs(place(a) - place(b));
}

// Every finite input. What is computed before the rounding is right to 1e-4, so that some results are the second nearest bf16, and none is
// further away unless it is tiny, or the slope near its zero at -0.75.
TEST_P(Bf16Test, GeluIsTheNearestNumberOrTheOneBesideIt) {
  std::vector<Bf16> x;
  for (int bits = 0; bits < 1 << 16; ++bits)
    if (std::isfinite(f32_of_bf16(static_cast<std::uint16_t>(bits)))) x.push_back({static_cast<std::uint16_t>(bits)});
  const std::vector<Bf16> ones(x.size(), Bf16{bf16_of_f32(1)});
  std::vector<Bf16> y(x.size()), slope(x.size());
  loops().gelu(x.data(), y.data(), std::ssize(x), false);
  loops().gelu_backward(ones.data(), x.data(), slope.data(), std::ssize(x), false);
  int beside = 0, large = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = double{f32_of_bf16(x[i].bits)}, cdf = 0.5 * std::erfc(-v / std::sqrt(2.0));
    const double density = std::exp(-0.5 * v * v) / std::sqrt(2 * std::numbers::pi);
    const auto check = [&](Bf16 found, double expected, double tiny) {
      if (std::fabs(expected) < tiny) {
        EXPECT_NEAR(double{f32_of_bf16(found.bits)}, expected, tiny) << v;
        return;
      }
      const int steps = steps_between(f32_of_bf16(found.bits), static_cast<float>(expected));
      EXPECT_LE(steps, 1) << v << " gives " << f32_of_bf16(found.bits) << ", not " << expected;
      beside += steps;
      ++large;
    };
    check(y[i], v * cdf, 1e-36);
    check(slope[i], cdf + v * density, std::fabs(v + 0.75) < 0.1 ? 1e-2 : 1e-36);
  }
  EXPECT_LT(beside, large / 1000) << "results beside the nearest";
}

TEST_P(Bf16Test, Rows) {
  for (std::int64_t width : kSizes) {
    const std::int64_t rows = 5;
    const NormShape shape{rows, width};
    const T x = normal({rows, width}), bias = normal({width}), dy = normal({rows, width}), out = low({rows, width});
    const std::string size = std::to_string(width);
    loops().add_bias(data(x), data(bias), data(out), shape);
    expect_rounded(out, wide(x) + wide(bias), "add_bias " + size);
    const T sum = normal({width}, DType::f32), before = wide(sum).clone();
    loops().column_sum(data(x), floats(sum), shape, true);
    EXPECT_LT((wide(sum) - before - wide(x).sum(0)).abs().max().item().toDouble(), 1e-5) << "sums are f32";
    for (bool log : {false, true}) {
      loops().softmax(data(x), data(out), shape, log);
      const T y = log ? at::softmax(wide(x), 1).log() : at::softmax(wide(x), 1);
      expect_rounded(out, y, "softmax " + size);
      loops().softmax_backward(data(dy), data(out), data(out), shape, log);
    }
    loops().softmax(data(x), data(out), shape, false);
    const T y = wide(out), dx = low({rows, width});
    loops().softmax_backward(data(dy), data(out), data(dx), shape, false);
    expect_rounded(dx, at::_softmax_backward_data(wide(dy), y, 1, at::kDouble), "softmax_backward " + size);
  }
}

TEST_P(Bf16Test, LayerNorm) {
  for (std::int64_t width : kSizes) {
    if (width == 1) continue;  // its gradient is zero
    const NormShape shape{5, width};
    const T x = normal({5, width}), dy = normal({5, width}), w = normal({width}, DType::f32), b = normal({width}, DType::f32);
    const T y = low({5, width}), mean = at::empty({5, 1}), rstd = at::empty({5, 1}), dx = low({5, width});
    const T dw = at::ones_like(w), db = at::ones_like(b);
    loops().layer_norm(data(x), floats(w), floats(b), data(y), floats(mean), floats(rstd), shape, 1e-3f);
    loops().layer_norm_backward(data(dy), data(x), floats(mean), floats(rstd), floats(w), data(dx), floats(dw), floats(db), shape, true);
    const auto [y2, mean2, rstd2] = at::native_layer_norm(wide(x), {width}, wide(w), wide(b), double{1e-3f});
    const auto [dx2, dw2, db2] =
        at::native_layer_norm_backward(wide(dy), wide(x), {width}, mean2, rstd2, wide(w), wide(b), {true, true, true});
    const std::string size = std::to_string(width);
    expect_rounded(y, y2, "y " + size, 1e-4);
    expect_near(rstd, rstd2, 1e-5, "rstd " + size);
    expect_near(dx, dx2, kRounding, "dx " + size);
    expect_near(dw, dw2 + 1, 1e-4, "dweight, added in f32 " + size);
    expect_near(db, db2 + 1, 1e-5, "dbias, added in f32 " + size);
  }
}

TEST_P(Bf16Test, CrossEntropy) {
  for (std::int64_t width : kSizes) {
    const NormShape shape{3, width};
    const T x = normal({3, width}) * 4, logsumexp = at::empty({3}), d = low({3, width});
    const std::int64_t targets[] = {0, width - 1, -100};
    const T labels = at::empty({3}, at::kLong);
    for (std::int64_t i = 0; i < 3; ++i) labels[i] = targets[i];
    const double loss = loops().cross_entropy(data(x), targets, floats(logsumexp), shape, -100);
    EXPECT_NEAR(loss, at::cross_entropy_loss(wide(x), labels, {}, 2).item().toDouble(), 1e-4 + 1e-6 * loss) << width;
    loops().cross_entropy_backward(data(x), targets, floats(logsumexp), data(d), shape, -100, 0, 0.5f);
    T expected = at::softmax(wide(x), 1);
    expected[0][0] -= 1;
    expected[1][width - 1] -= 1;
    expected[2].zero_();
    expect_rounded(d, expected * 0.5, concat("dlogits ", width), 1e-5);
  }
}

// Every layout, with sizes that fit no tile; products that are deeper than a panel, and of more rows than are packed or summed together.
TEST_P(Bf16Test, Gemm) {
  const auto strided = [](const T& x) { return MatrixView<Bf16>{data(x), x.stride(0), x.stride(1)}; };
  const auto pick = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random_); };
  for (int round = 0; round < 200; ++round) {
    const bool deep = round % 20 < 4, tall = round % 20 >= 16;
    const std::int64_t m = pick(tall ? 600 : 40), n = pick(round % 2 ? 150 : 20), k = pick(deep ? 2500 : 40);
    const T a = round & 1 ? normal({m, k}) : normal({k, m}).t(), b = round & 2 ? normal({k, n}) : normal({n, k}).t();
    const T bias = normal({n}), c = low({m, n + 3}).slice(1, 0, n), sums = normal({m, n + 3}, DType::f32).slice(1, 0, n);
    const T product = wide(a).matmul(wide(b)), before = wide(sums).clone();
    const std::string size = concat(m, " x ", n, " x ", k);
    const double slack = 1e-6 * static_cast<double>(4 * k + 4);
    const bool start = pick(2) == 1;
    loops().gemm(m, n, k, strided(a), strided(b), data(c), n + 3, start ? data(bias) : nullptr);
    expect_rounded(c, start ? product + wide(bias) : product, size, slack);
    loops().gemm_f32(m, n, k, strided(a), strided(b), floats(sums), n + 3, start);
    EXPECT_LT((wide(sums) - (start ? product + before : product)).abs().max().item().toDouble(), slack) << size;
  }
}

// As for f32 (vector_test.cpp); an odd k ends in half a word.
TEST_P(Bf16Test, GemmHasTheSameBitsFromEveryLayout) {
  const auto strided = [](const T& x) { return MatrixView<Bf16>{data(x), x.stride(0), x.stride(1)}; };
  for (const auto [m, n, k] : {std::array<std::int64_t, 3>{5, 64, 40}, {13, 200, 301}, {50, 128, 1302}}) {
    const T a = normal({m, k}), b = normal({k, n});
    const auto sums = [&](const T& x, const T& y) {
      const T c = at::ones({x.size(0), n});
      loops().gemm_f32(x.size(0), n, k, strided(x), strided(y), floats(c), n, true);
      return c;
    };
    const T all = sums(a, b);
    EXPECT_TRUE(sums(a, b.t().contiguous().t()).equal(all)) << m << " x " << n << " x " << k;
    EXPECT_TRUE(sums(a.slice(0, 0, 2), b).equal(all.slice(0, 0, 2))) << m << " x " << n << " x " << k;
  }
}

TEST_P(Bf16Test, Attention) {
  const auto view = []<class E>(const T& x, E* place) { return HeadsView<E>{place, {x.stride(0), x.stride(1), x.stride(2)}}; };
  const auto read = [&](const T& x) { return view(x, static_cast<const Bf16*>(data(x))); };
  const auto write = [&](const T& x) { return view(x, data(x)); };
  for (auto [length, head] : {std::pair<std::int64_t, std::int64_t>{1, 4}, {5, 3}, {33, 16}, {70, 21}, {130, 8}, {261, 72}})
    for (bool causal : {false, true}) {
      const T qkv = normal({2, length, 3, 2, head}), d = normal({2, length, 2, head}).transpose(1, 2);
      const auto part = [&](const T& of, std::int64_t i) { return of.select(2, i).transpose(1, 2); };
      const T out = low({2, 2, length, head}), logsumexp = at::empty({2, 2, length}), gradients = at::empty_like(qkv);
      const AttentionShape shape{2, 2, length, length, head, causal, 0.4f};
      loops().attention(read(part(qkv, 0)), read(part(qkv, 1)), read(part(qkv, 2)), write(out), floats(logsumexp), shape);
      const T q = wide(part(qkv, 0)), k = wide(part(qkv, 1)), v = wide(part(qkv, 2));
      const auto [out2, logsumexp2] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, double{0.4f});
      const std::string size = concat(length, " x ", head);
      expect_near(out, out2, 2 * kRounding, "out " + size);
      expect_near(logsumexp, logsumexp2, 1e-5, "logsumexp, not rounded " + size);
      const T sums = at::empty({2, length, head});
      loops().attention_backward(read(d), read(part(qkv, 0)), read(part(qkv, 1)), read(part(qkv, 2)), read(out), floats(logsumexp),
                                 write(part(gradients, 0)), write(part(gradients, 1)), write(part(gradients, 2)), shape, floats(sums));
      const auto expected =
          at::_scaled_dot_product_flash_attention_for_cpu_backward(wide(d), q, k, v, out2, logsumexp2, 0.0, causal, {}, double{0.4f});
      const T all = at::zeros_like(wide(gradients));
      part(all, 0).copy_(std::get<0>(expected));
      part(all, 1).copy_(std::get<1>(expected));
      part(all, 2).copy_(std::get<2>(expected));
      EXPECT_LT((wide(gradients) - all).norm().item().toDouble(), 3e-2 * all.norm().item().toDouble()) << size;
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, Bf16Test, testing::ValuesIn(all_vector_kernels().begin(), all_vector_kernels().end()),
                         [](const auto& set) { return std::string(set.param->name); });

}  // namespace
}  // namespace penstock
