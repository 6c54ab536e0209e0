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
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
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

void gelu(benchmark::State& state, bool ours) {
  const T x = at::randn({kRows, state.range(0)}), d = at::randn({kRows, state.range(0)});
  T y = at::empty_like(x), dx = at::empty_like(x);
  for (auto _ : state) {
    if (ours) {
      vector_kernels().gelu(floats(x), floats(y), x.numel(), false);
      vector_kernels().gelu_backward(floats(d), floats(x), floats(dx), x.numel(), false);
    } else {
      at::gelu_out(y, x);
      at::gelu_backward_out(dx, d, x);
    }
  }
  with_items(state, x.numel());
}
BENCHMARK_CAPTURE(gelu, ours, true)->Arg(256)->Arg(1024);
BENCHMARK_CAPTURE(gelu, libtorch, false)->Arg(256)->Arg(1024);

void layer_norm(benchmark::State& state, bool ours) {
  const std::int64_t width = state.range(0);
  const T x = at::randn({kRows, width}), d = at::randn({kRows, width}), w = at::randn({width}), b = at::randn({width});
  const T y = at::empty_like(x), dx = at::empty_like(x), dw = at::zeros({width}), db = at::zeros({width}), mean = at::zeros({kRows, 1}),
          rstd = at::zeros({kRows, 1});
  const NormShape shape{kRows, width};
  for (auto _ : state) {
    if (ours) {
      vector_kernels().layer_norm(floats(x), floats(w), floats(b), floats(y), floats(mean), floats(rstd), shape, 1e-5f);
      vector_kernels().layer_norm_backward(floats(d), floats(x), floats(mean), floats(rstd), floats(w), floats(dx), floats(dw), floats(db),
                                           shape, true);
    } else {
      const auto [out, m, r] = at::native_layer_norm(x, {width}, w, b, 1e-5);
      benchmark::DoNotOptimize(at::native_layer_norm_backward(d, x, {width}, m, r, w, b, {true, true, true}));
    }
  }
  with_items(state, x.numel());
}
BENCHMARK_CAPTURE(layer_norm, ours, true)->Arg(64)->Arg(256);
BENCHMARK_CAPTURE(layer_norm, libtorch, false)->Arg(64)->Arg(256);

// Our loop keeps the logsumexp for the backward pass.
void cross_entropy(benchmark::State& state, bool ours) {
  const T logits = at::randn({kRows, state.range(0)}), targets = at::zeros({kRows}, at::kLong), logsumexp = at::zeros({kRows});
  for (auto _ : state) {
    if (ours)
      benchmark::DoNotOptimize(vector_kernels().cross_entropy(floats(logits), static_cast<const std::int64_t*>(targets.data_ptr()),
                                                              floats(logsumexp), {kRows, state.range(0)}, -100));
    else
      benchmark::DoNotOptimize(at::cross_entropy_loss(logits, targets));
  }
  with_items(state, logits.numel());
}
BENCHMARK_CAPTURE(cross_entropy, ours, true)->Arg(2048);
BENCHMARK_CAPTURE(cross_entropy, libtorch, false)->Arg(2048);

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
