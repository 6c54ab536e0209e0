// SPDX-License-Identifier: Apache-2.0
// Measures our loops beside libtorch's, and matrix products by library, at the sizes of the reference model (2 sequences of 128, vocabulary
// 2048, 4 heads). Times are CPU times of the thread; items are floating-point operations for products, elements otherwise.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include "torch/kernel.h"
#include "torch/vector.h"

namespace penstock {
namespace {

using T = at::Tensor;
constexpr std::int64_t kRows = 256;

float* floats(const T& x) {
  return static_cast<float*>(x.data_ptr());
}

void with_items(benchmark::State& state, std::int64_t items) {
  state.SetItemsProcessed(state.iterations() * items);
}

// The arguments are rows, columns, inner size, and which operand is transposed (0: none, 1: the first, as for a weight's gradient, which is
// added, in f32; 2: the second, as in a layer).
void product(benchmark::State& state, const char* kernel, at::ScalarType dtype) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2), transposed = state.range(3);
  const T operands[] = {transposed == 1 ? at::randn({k, m}).to(dtype).t() : at::randn({m, k}).to(dtype),
                        transposed == 2 ? at::randn({n, k}).to(dtype).t() : at::randn({k, n}).to(dtype)};
  const T results[] = {at::zeros({m, n}, transposed == 1 ? at::kFloat : dtype)};
  const Graph graph;
  Op op;
  op.name = "mm";
  op.attributes["kernel"] = std::string(kernel);
  const Bound call = find_kernel("mm")->bind({graph, op, operands, results, transposed == 1 ? 1u : 0u});
  for (auto _ : state) call();
  with_items(state, 2 * m * n * k);
}

void product_sizes(benchmark::internal::Benchmark* bench) {
  for (std::int64_t width : {64, 256, 768})
    for (auto [in, out] :
         {std::pair{width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}, {width, std::int64_t{2048}}}) {
      bench->Args({kRows, out, in, 2});
      bench->Args({kRows, in, out, 0});
      bench->Args({out, in, kRows, 1});
    }
}
BENCHMARK_CAPTURE(product, f32_penstock, "penstock", at::kFloat)->Apply(product_sizes);
BENCHMARK_CAPTURE(product, f32_onednn, "onednn", at::kFloat)->Apply(product_sizes);
BENCHMARK_CAPTURE(product, f32_mkl, "mkl", at::kFloat)->Apply(product_sizes);
BENCHMARK_CAPTURE(product, bf16_penstock, "penstock", at::kBFloat16)->Apply(product_sizes);
BENCHMARK_CAPTURE(product, bf16_onednn, "onednn", at::kBFloat16)->Apply(product_sizes);

// Each op alone; libtorch's is in f32.
enum class Type { f32, bf16, libtorch };
template <class F>
void ours_in(Type type, const F& f) {
  type == Type::bf16 ? f(vector_kernels().bf16, Bf16{}) : f(vector_kernels(), float{});
}
template <class E>
E* place(const T& x) {
  return static_cast<E*>(x.data_ptr());
}
T randn_of(Type type, at::IntArrayRef shape) {
  return at::randn(shape).to(type == Type::bf16 ? at::kBFloat16 : at::kFloat);
}

void gelu(benchmark::State& state, Type type) {
  const T x = randn_of(type, {kRows, state.range(0)});
  T y = at::empty_like(x);
  for (auto _ : state)
    if (type == Type::libtorch)
      at::gelu_out(y, x);
    else
      ours_in(type, [&]<class E>(const auto& own, E) { own.gelu(place<E>(x), place<E>(y), x.numel(), false); });
  with_items(state, x.numel());
}
void gelu_backward(benchmark::State& state, Type type) {
  const T x = randn_of(type, {kRows, state.range(0)}), d = randn_of(type, {kRows, state.range(0)});
  T dx = at::empty_like(x);
  for (auto _ : state)
    if (type == Type::libtorch)
      at::gelu_backward_out(dx, d, x);
    else
      ours_in(type, [&]<class E>(const auto& own, E) { own.gelu_backward(place<E>(d), place<E>(x), place<E>(dx), x.numel(), false); });
  with_items(state, x.numel());
}

void layer_norm(benchmark::State& state, Type type) {
  const std::int64_t width = state.range(0);
  const T x = randn_of(type, {kRows, width}), w = at::randn({width}), b = at::randn({width}), y = at::empty_like(x);
  const T mean = at::zeros({kRows, 1}), rstd = at::zeros({kRows, 1});
  for (auto _ : state)
    if (type == Type::libtorch)
      benchmark::DoNotOptimize(at::native_layer_norm(x, {width}, w, b, 1e-5));
    else
      ours_in(type, [&]<class E>(const auto& own, E) {
        own.layer_norm(place<E>(x), floats(w), floats(b), place<E>(y), floats(mean), floats(rstd), {kRows, width}, 1e-5f);
      });
  with_items(state, x.numel());
}
void layer_norm_backward(benchmark::State& state, Type type) {
  const std::int64_t width = state.range(0);
  const T x = randn_of(type, {kRows, width}), d = randn_of(type, {kRows, width}), w = at::randn({width}), b = at::randn({width});
  const T dx = at::empty_like(x), dw = at::zeros({width}), db = at::zeros({width}), mean = at::zeros({kRows, 1}),
          rstd = at::ones({kRows, 1});
  for (auto _ : state)
    if (type == Type::libtorch)
      benchmark::DoNotOptimize(at::native_layer_norm_backward(d, x, {width}, mean, rstd, w, b, {true, true, true}));
    else
      ours_in(type, [&]<class E>(const auto& own, E) {
        own.layer_norm_backward(place<E>(d), place<E>(x), floats(mean), floats(rstd), floats(w), place<E>(dx), floats(dw), floats(db),
                                {kRows, width}, true);
      });
  with_items(state, x.numel());
}

// Our loop keeps the logsumexp for the backward pass.
void cross_entropy(benchmark::State& state, Type type) {
  const NormShape shape{kRows, state.range(0)};
  const T logits = randn_of(type, {kRows, shape.width}), targets = at::zeros({kRows}, at::kLong), logsumexp = at::zeros({kRows});
  for (auto _ : state)
    if (type == Type::libtorch)
      benchmark::DoNotOptimize(at::cross_entropy_loss(logits, targets));
    else
      ours_in(type, [&]<class E>(const auto& own, E) {
        benchmark::DoNotOptimize(own.cross_entropy(place<E>(logits), place<std::int64_t>(targets), floats(logsumexp), shape, -100));
      });
  with_items(state, logits.numel());
}
void cross_entropy_backward(benchmark::State& state, Type type) {
  const NormShape shape{kRows, state.range(0)};
  const T logits = randn_of(type, {kRows, shape.width}), d = at::empty_like(logits), targets = at::zeros({kRows}, at::kLong);
  const T logsumexp = at::logsumexp(logits.to(at::kFloat), {1});
  for (auto _ : state)
    ours_in(type, [&]<class E>(const auto& own, E) {
      own.cross_entropy_backward(place<E>(logits), place<std::int64_t>(targets), floats(logsumexp), place<E>(d), shape, -100, 0, 0.5f);
    });
  with_items(state, logits.numel());
}

#define MEASURE(op, ...)                                             \
  BENCHMARK_CAPTURE(op, f32, Type::f32)->ArgsProduct({__VA_ARGS__}); \
  BENCHMARK_CAPTURE(op, bf16, Type::bf16)->ArgsProduct({__VA_ARGS__});
#define MEASURE_BESIDE(op, ...) \
  MEASURE(op, __VA_ARGS__)      \
  BENCHMARK_CAPTURE(op, libtorch, Type::libtorch)->ArgsProduct({__VA_ARGS__});
MEASURE_BESIDE(gelu, {256, 1024})
MEASURE_BESIDE(gelu_backward, {256, 1024})
MEASURE_BESIDE(layer_norm, {64, 256})
MEASURE_BESIDE(layer_norm_backward, {64, 256})
MEASURE_BESIDE(cross_entropy, {2048})
MEASURE(cross_entropy_backward, {2048})

void to_bf16(benchmark::State& state) {
  const T x = at::randn({state.range(0)}), y = x.to(at::kBFloat16);
  for (auto _ : state) vector_kernels().to_bf16(floats(x), place<Bf16>(y), x.numel());
  with_items(state, x.numel());
}
BENCHMARK(to_bf16)->Arg(1 << 18);

HeadStrides strides_of(const T& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

// The arguments are the size of a head and the length. Causal, forward or backward.
template <class E>
void attend(benchmark::State& state, at::ScalarType dtype, bool ours, bool backward) {
  const std::int64_t head = state.range(0), length = state.range(1);
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
  const T qkv = normal({2, length, 3, 4, head}), gradient = at::empty_like(qkv), d = normal({2, 4, length, head});
  const T out = at::empty_like(d), logsumexp = at::zeros({2, 4, length}), sums = at::zeros({2, length, head});
  const auto part = [](const T& x, std::int64_t i) { return x.select(2, i).transpose(1, 2); };
  const auto read = [](const T& x) { return HeadsView<const E>{static_cast<const E*>(x.data_ptr()), strides_of(x)}; };
  const auto write = [](const T& x) { return HeadsView<E>{static_cast<E*>(x.data_ptr()), strides_of(x)}; };
  const T q = part(qkv, 0), k = part(qkv, 1), v = part(qkv, 2), dq = part(gradient, 0), dk = part(gradient, 1), dv = part(gradient, 2);
  const AttentionShape shape{2, 4, length, length, head, true, 0.25f};
  const ElementKernels<E>* loops = nullptr;
  if constexpr (sizeof(E) == sizeof(float))
    loops = &vector_kernels();
  else
    loops = &vector_kernels().bf16;
  loops->attention(read(q), read(k), read(v), write(out), floats(logsumexp), shape);
  for (auto _ : state) {
    if (ours && !backward)
      loops->attention(read(q), read(k), read(v), write(out), floats(logsumexp), shape);
    else if (ours)
      loops->attention_backward(read(d), read(q), read(k), read(v), read(out), floats(logsumexp), write(dq), write(dk), write(dv), shape,
                                sizeof(E) < sizeof(float) ? floats(sums) : nullptr);
    else if (!backward)
      benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {}, 0.25));
    else
      benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu_backward(d, q, k, v, out, logsumexp, 0.0, true, {}, 0.25));
  }
  with_items(state, d.numel());
}
void attention_sizes(benchmark::internal::Benchmark* bench) {
  for (auto [head, length] : {std::pair<std::int64_t, std::int64_t>{16, 128}, {64, 128}, {64, 1024}}) bench->Args({head, length});
}
void attention(benchmark::State& state, at::ScalarType dtype, bool ours, bool backward) {
  dtype == at::kFloat ? attend<float>(state, dtype, ours, backward) : attend<Bf16>(state, dtype, ours, backward);
}
BENCHMARK_CAPTURE(attention, f32_penstock, at::kFloat, true, false)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, f32_libtorch, at::kFloat, false, false)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, f32_backward_penstock, at::kFloat, true, true)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, f32_backward_libtorch, at::kFloat, false, true)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, bf16_penstock, at::kBFloat16, true, false)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, bf16_libtorch, at::kBFloat16, false, false)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, bf16_backward_penstock, at::kBFloat16, true, true)->Apply(attention_sizes);
BENCHMARK_CAPTURE(attention, bf16_backward_libtorch, at::kBFloat16, false, true)->Apply(attention_sizes);

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
