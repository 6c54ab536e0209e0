// SPDX-License-Identifier: Apache-2.0
// The functions of ops.h that other frameworks have under the same names, against libtorch's: values and gradients in f64, at odd sizes.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/real.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/text.h"
#include "models/layers.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "support/seed.h"
#include "torch/run_graph.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Ours = std::vector<Tensor>;
using Theirs = std::vector<T>;
using Integers = std::vector<std::int64_t>;

struct Operand {
  TensorType type;
  double low = -1, high = 1;
};
Operand f(Shape shape, double low = -1, double high = 1) {
  return {{DType::f64, std::move(shape)}, low, high};
}
Operand index(Shape shape, double below) {
  return {{DType::i64, std::move(shape)}, 0, below};
}
Operand mask(Shape shape) {
  return {{DType::boolean, std::move(shape)}, 0, 2};
}

// One function on some operands, by us and by libtorch.
struct Row {
  std::string name;
  std::vector<Operand> operands;
  std::function<Ours(const Ours&)> ours;
  std::function<Theirs(const Theirs&)> theirs;
};
using Rows = std::vector<Row>;
using O = const Ours&;
using X = const Theirs&;

void elementwise(Rows& rows) {
  rows.push_back(
      {"clamp", {f({5, 7})}, [](O x) -> Ours { return {clamp(x[0], -0.3, 0.4)}; }, [](X x) -> Theirs { return {x[0].clamp(-0.3, 0.4)}; }});
  rows.push_back(
      {"clamp, below", {f({5})}, [](O x) -> Ours { return {clamp(x[0], 0.1)}; }, [](X x) -> Theirs { return {x[0].clamp(0.1)}; }});
  rows.push_back(
      {"clamp, above", {f({5})}, [](O x) -> Ours { return {clamp(x[0], {}, 0.1)}; }, [](X x) -> Theirs { return {x[0].clamp({}, 0.1)}; }});
  rows.push_back({"clamp at its limit",
                  {f({5})},
                  [](O x) -> Ours { return {clamp(x[0] * 0 + 0.5, 0.5, 0.5)}; },
                  [](X x) -> Theirs { return {(x[0] * 0 + 0.5).clamp(0.5, 0.5)}; }});
  rows.push_back({"masked_fill",
                  {f({3, 5}), mask({5})},
                  [](O x) -> Ours { return {masked_fill(x[0], x[1], 2.5)}; },
                  [](X x) -> Theirs { return {x[0].masked_fill(x[1], 2.5)}; }});
  for (const std::int64_t diagonal : {-2, 0, 1}) {
    rows.push_back({concat("tril ", diagonal),
                    {f({3, 5, 7})},
                    [=](O x) -> Ours { return {tril(x[0], diagonal)}; },
                    [=](X x) -> Theirs { return {x[0].tril(diagonal)}; }});
    rows.push_back({concat("triu ", diagonal),
                    {f({7, 5})},
                    [=](O x) -> Ours { return {triu(x[0], diagonal)}; },
                    [=](X x) -> Theirs { return {x[0].triu(diagonal)}; }});
  }
  rows.push_back({"pow",
                  {f({3, 5}, 0.5, 2), f({5})},
                  [](O x) -> Ours { return {pow(x[0], x[1]), pow(2.5, x[1]), pow(x[1], 3)}; },
                  [](X x) -> Theirs { return {x[0].pow(x[1]), at::pow(2.5, x[1]), x[1].pow(3)}; }});
  rows.push_back({"pow of zero",
                  {f({5}), f({5}, 0, 2)},
                  [](O x) -> Ours { return {pow(detach(x[0] * 0), x[1]), pow(x[0], detach(x[1] * 0))}; },
                  [](X x) -> Theirs { return {(x[0] * 0).detach().pow(x[1]), x[0].pow((x[1] * 0).detach())}; }});
  rows.push_back({"log1p",
                  {f({5}, -0.9, 3)},
                  [](O x) -> Ours { return {log1p(x[0]), log1p(x[0] * 1e-9)}; },
                  [](X x) -> Theirs { return {x[0].log1p(), (x[0] * 1e-9).log1p()}; }});
  rows.push_back({"softplus",
                  {f({5, 7}, -60, 60)},
                  [](O x) -> Ours { return {softplus(x[0]), softplus(x[0], 0.7, 3), softplus(x[0] * 0)}; },
                  [](X x) -> Theirs { return {at::softplus(x[0]), at::softplus(x[0], 0.7, 3), at::softplus(x[0] * 0)}; }});
  rows.push_back({"detach",
                  {f({5}), f({5})},
                  [](O x) -> Ours { return {detach(x[0]) * x[1] + x[0]}; },
                  [](X x) -> Theirs { return {x[0].detach() * x[1] + x[0]}; }});
}

// libtorch has none: pairs as complex numbers, each multiplied by the unit number of its angle.
T turned(const T& x, const T& positions) {
  const std::int64_t half = x.size(3) / 2;
  const T rates = at::pow(10000.0, -at::arange(half, x.options()) / static_cast<double>(half));
  const T angles = positions.to(at::kDouble).unsqueeze(-1) * rates;
  const T pairs = at::complex(x.slice(3, 0, half), x.slice(3, half));
  const T out = pairs * at::polar(at::ones_like(angles), angles);
  return at::cat({at::real(out), at::imag(out)}, 3);
}

void positions(Rows& rows) {
  rows.push_back({"rotary",
                  {f({2, 3, 5, 6})},
                  [](O x) -> Ours { return {rotary(x[0], {})}; },
                  [](X x) -> Theirs { return {turned(x[0], at::arange(5, at::kLong))}; }});
  rows.push_back({"rotary at positions",
                  {f({2, 3, 5, 6}), index({2, 5}, 1000)},
                  [](O x) -> Ours { return {rotary(x[0], x[1])}; },
                  [](X x) -> Theirs { return {turned(x[0], x[1].unsqueeze(1))}; }});
}

void indexing(Rows& rows) {
  for (const int dim : {1, -2}) {
    const std::vector<Operand> operands = {f({3, 5, 7}), index({2, 9, 6}, 5), f({2, 9, 6})};
    rows.push_back({concat("gather ", dim), operands, [=](O x) -> Ours { return {gather(x[0], dim, x[1])}; },
                    [=](X x) -> Theirs { return {x[0].gather(dim, x[1])}; }});
    rows.push_back({concat("scatter_add ", dim), operands, [=](O x) -> Ours { return {scatter_add(x[0], dim, x[1], x[2])}; },
                    [=](X x) -> Theirs { return {x[0].scatter_add(dim, x[1], x[2])}; }});
    rows.push_back({concat("index_select ", dim),
                    {f({3, 5, 7}), index({9}, 5), f({3, 9, 7})},
                    [=](O x) -> Ours { return {index_select(x[0], dim, x[1]), index_add(x[0], dim, x[1], x[2])}; },
                    [=](X x) -> Theirs { return {x[0].index_select(dim, x[1]), x[0].index_add(dim, x[1], x[2])}; }});
  }
  // The places all differ: they are those of a sort.
  rows.push_back({"scatter",
                  {f({5, 7}), f({5, 7}), f({4, 7})},
                  [](O x) -> Ours { return {scatter(x[0], -2, slice(sort(x[1], 0).indices, 0, 0, 4), x[2])}; },
                  [](X x) -> Theirs { return {x[0].scatter(0, std::get<1>(x[1].sort(0)).slice(0, 0, 4), x[2])}; }});
  for (const bool down : {false, true})
    rows.push_back({concat("sort ", down),
                    {f({5, 7, 3})},
                    [=](O x) -> Ours {
                      const auto [values, indices] = sort(x[0], -2, down);
                      const auto [rounded, places] = sort(to(to(x[0] * 3, DType::i64), DType::f64), 1, down);
                      return {values, indices, places, topk(x[0], 3, 0, down).values, topk(x[0], 2, -1, down).indices};
                    },
                    [=](X x) -> Theirs {
                      const auto [values, indices] = x[0].sort(-2, down);
                      const auto [rounded, places] = (x[0] * 3).to(at::kLong).to(at::kDouble).sort(/*stable=*/true, 1, down);
                      return {values, indices, places, std::get<0>(x[0].topk(3, 0, down)), std::get<1>(x[0].topk(2, -1, down))};
                    }});
  rows.push_back({"argmax",
                  {f({5, 7})},
                  [](O x) -> Ours { return {argmax(x[0], -1), argmax(x[0], 0, true), argmax(x[0]), argmax(x[0], {}, true)}; },
                  [](X x) -> Theirs { return {x[0].argmax(-1), x[0].argmax(0, true), x[0].argmax(), x[0].argmax({}, true)}; }});
  rows.push_back({"one_hot",
                  {index({3, 5}, 7)},
                  [](O x) -> Ours { return {one_hot(x[0], 7)}; },
                  [](X x) -> Theirs { return {at::one_hot(x[0], 7)}; }});
  rows.push_back({"cumsum",
                  {f({5, 7})},
                  [](O x) -> Ours { return {cumsum(x[0], -1), cumsum(x[0], 0)}; },
                  [](X x) -> Theirs { return {x[0].cumsum(-1), x[0].cumsum(0)}; }});
}

void shapes(Rows& rows) {
  for (const int dim : {0, 1, -1})
    rows.push_back({concat("stack ", dim),
                    {f({3, 5}), f({3, 5}), f({3, 5})},
                    [=](O x) -> Ours { return {stack(x, dim)}; },
                    [=](X x) -> Theirs { return {at::stack(x, dim)}; }});
  for (const auto& [mode, widths] : std::vector<std::pair<std::string, Integers>>{
           {"constant", {2, 1, 0, 3, -1, 2}}, {"reflect", {2, 3, 1, 0}}, {"replicate", {4, 1, 0, 7}}, {"circular", {2, 5, 3, 1}}})
    rows.push_back(
        {"pad " + mode,
         {f({2, 3, 4, 5})},
         [=](O x) -> Ours { return {pad(x[0], widths, mode, mode == "constant" ? 0.5 : 0)}; },
         [=](X x) -> Theirs { return {at::pad(x[0], widths, mode, mode == "constant" ? std::optional<double>(0.5) : std::nullopt)}; }});
}

void products(Rows& rows) {
  const std::vector<std::pair<std::string, std::vector<Shape>>> equations = {
      {"ij,jk->ik", {{3, 5}, {5, 7}}},
      {"bij, bjk -> bik", {{2, 3, 5}, {2, 5, 7}}},
      {"bhqd,bhkd->bhqk", {{2, 3, 5, 4}, {2, 3, 7, 4}}},
      {"bqhd,bkhd->bhqk", {{2, 5, 3, 4}, {2, 7, 3, 4}}},
      {"ij->ji", {{3, 5}}},
      {"ij->", {{3, 5}}},
      {"ba,ac", {{3, 5}, {5, 7}}},
      {"i,j->ji", {{3}, {5}}},
      {"i,i->", {{3}, {3}}},
      {"ij,ij->i", {{3, 5}, {3, 5}}},
      {"ij,kl->k", {{3, 5}, {7, 2}}},
      {"bi,oij,bj->bo", {{2, 3}, {7, 3, 5}, {2, 5}}},
      {"a,ab,bcd,d->cb", {{3}, {3, 5}, {5, 2, 4}, {4}}},
  };
  for (const auto& [equation, sizes] : equations) {
    std::vector<Operand> operands;
    for (const Shape& shape : sizes) operands.push_back(f(shape));
    rows.push_back({"einsum " + equation, operands, [=](O x) -> Ours { return {einsum(equation, x)}; },
                    [=](X x) -> Theirs { return {at::einsum(equation, x)}; }});
  }
}

void images(Rows& rows) {
  const auto bias = [](X x, std::size_t i) { return std::optional<T>(x[i]); };
  rows.push_back({"conv1d",
                  {f({3, 4, 11}), f({6, 2, 3}), f({6})},
                  [](O x) -> Ours { return {conv1d(x[0], x[1], x[2], {.stride = {2}, .padding = {3}, .dilation = {2}, .groups = 2})}; },
                  [=](X x) -> Theirs { return {at::conv1d(x[0], x[1], bias(x, 2), 2, 3, 2, 2)}; }});
  rows.push_back({"conv2d, in groups",
                  {f({3, 6, 9, 8}), f({3, 2, 3, 3}), f({3})},
                  [](O x) -> Ours { return {conv2d(x[0], x[1], x[2], {.stride = {2}, .padding = {1}, .groups = 3})}; },
                  [=](X x) -> Theirs { return {at::conv2d(x[0], x[1], bias(x, 2), 2, 1, 1, 3)}; }});
  rows.push_back({"conv2d, dilated, by channel",
                  {f({3, 4, 9, 8}), f({4, 1, 3, 3})},
                  [](O x) -> Ours { return {conv2d(x[0], x[1], {}, {.padding = {2}, .dilation = {2}, .groups = 4})}; },
                  [=](X x) -> Theirs { return {at::conv2d(x[0], x[1], {}, 1, 2, 2, 4)}; }});
  rows.push_back({"conv3d",
                  {f({2, 3, 5, 6, 7}), f({4, 3, 3, 2, 3}), f({4})},
                  [](O x) -> Ours { return {conv3d(x[0], x[1], x[2], {.stride = {2}, .padding = {1}})}; },
                  [=](X x) -> Theirs { return {at::conv3d(x[0], x[1], bias(x, 2), 2, 1)}; }});
  rows.push_back(
      {"conv_transpose1d",
       {f({3, 4, 5}), f({4, 3, 3}), f({6})},
       [](O x) -> Ours {
         return {conv_transpose1d(x[0], x[1], x[2], {.stride = {3}, .padding = {1}, .dilation = {2}, .output_padding = {2}, .groups = 2})};
       },
       [=](X x) -> Theirs { return {at::conv_transpose1d(x[0], x[1], bias(x, 2), 3, 1, 2, 2, 2)}; }});
  rows.push_back({"conv_transpose2d",
                  {f({3, 4, 5, 4}), f({4, 3, 3, 2}), f({3})},
                  [](O x) -> Ours { return {conv_transpose2d(x[0], x[1], x[2], {.stride = {2}, .padding = {1}, .output_padding = {1}})}; },
                  [=](X x) -> Theirs { return {at::conv_transpose2d(x[0], x[1], bias(x, 2), 2, 1, 1)}; }});
  rows.push_back({"conv_transpose3d",
                  {f({2, 3, 3, 4, 2}), f({3, 2, 2, 3, 2})},
                  [](O x) -> Ours { return {conv_transpose3d(x[0], x[1])}; },
                  [=](X x) -> Theirs { return {at::conv_transpose3d(x[0], x[1])}; }});
  rows.push_back({"convolution",
                  {f({3, 4, 9, 8}), f({6, 4, 3, 2})},
                  [](O x) -> Ours { return {convolution(x[0], x[1], {}, {.stride = {2, 1}, .padding = {0, 3}, .dilation = {2, 3}})}; },
                  [=](X x) -> Theirs { return {at::convolution(x[0], x[1], {}, {2, 1}, {0, 3}, {2, 3}, false, {0, 0}, 1)}; }});
}

void pools_and_norms(Rows& rows) {
  for (const bool ceil : {false, true}) {
    rows.push_back({concat("avg_pool1d ", ceil),
                    {f({3, 4, 10})},
                    [=](O x) -> Ours { return {avg_pool1d(x[0], 3, 2, {1, ceil, !ceil})}; },
                    [=](X x) -> Theirs { return {at::avg_pool1d(x[0], 3, 2, 1, ceil, !ceil)}; }});
    rows.push_back({concat("avg_pool2d ", ceil),
                    {f({3, 4, 9, 10})},
                    [=](O x) -> Ours { return {avg_pool2d(x[0], 3, 2, {1, ceil})}; },
                    [=](X x) -> Theirs { return {at::avg_pool2d(x[0], 3, 2, 1, ceil)}; }});
    rows.push_back({concat("avg_pool3d ", ceil),
                    {f({2, 3, 5, 7, 6})},
                    [=](O x) -> Ours { return {avg_pool3d(x[0], 2, 2, {1, ceil, false})}; },
                    [=](X x) -> Theirs { return {at::avg_pool3d(x[0], 2, 2, 1, ceil, false)}; }});
  }
  rows.push_back(
      {"group_norm",
       {f({3, 6, 5, 2}), f({6}), f({6})},
       [](O x) -> Ours { return {group_norm(x[0], 3, x[1], x[2]), group_norm(x[0], 1, {}, {}, 0.1), group_norm(x[0], 2, x[1])}; },
       [=](X x) -> Theirs {
         return {at::group_norm(x[0], 3, x[1], x[2]), at::group_norm(x[0], 1, {}, {}, 0.1), at::group_norm(x[0], 2, x[1])};
       }});
}

void interpolations(Rows& rows) {
  for (const bool align : {false, true}) {
    rows.push_back({concat("interpolate linear ", align),
                    {f({3, 2, 5})},
                    [=](O x) -> Ours { return {interpolate(x[0], {8}, "linear", align)}; },
                    [=](X x) -> Theirs { return {at::upsample_linear1d(x[0], 8, align)}; }});
    rows.push_back({concat("interpolate bilinear ", align),
                    {f({3, 2, 5, 6})},
                    [=](O x) -> Ours { return {interpolate(x[0], {8, 4}, "bilinear", align)}; },
                    [=](X x) -> Theirs { return {at::upsample_bilinear2d(x[0], {8, 4}, align)}; }});
    rows.push_back({concat("interpolate bicubic ", align),
                    {f({3, 2, 5, 6})},
                    [=](O x) -> Ours { return {interpolate(x[0], {8, 9}, "bicubic", align)}; },
                    [=](X x) -> Theirs { return {at::upsample_bicubic2d(x[0], {8, 9}, align)}; }});
    rows.push_back({concat("interpolate trilinear ", align),
                    {f({2, 2, 3, 4, 5})},
                    [=](O x) -> Ours { return {interpolate(x[0], {5, 4, 7}, "trilinear", align)}; },
                    [=](X x) -> Theirs { return {at::upsample_trilinear3d(x[0], {5, 4, 7}, align)}; }});
  }
  rows.push_back({"interpolate nearest",
                  {f({3, 2, 5}), f({3, 2, 5, 6}), f({2, 2, 3, 4, 5})},
                  [](O x) -> Ours { return {interpolate(x[0], {8}), interpolate(x[1], {8, 3}), interpolate(x[2], {5, 4, 7})}; },
                  [](X x) -> Theirs {
                    return {at::upsample_nearest1d(x[0], 8), at::upsample_nearest2d(x[1], {8, 3}), at::upsample_nearest3d(x[2], {5, 4, 7})};
                  }});
}

void losses(Rows& rows) {
  constexpr auto kSum = at::Reduction::Sum;
  rows.push_back({"mse_loss",
                  {f({3, 5}), f({3, 5})},
                  [](O x) -> Ours { return {mse_loss(x[0], x[1])}; },
                  [](X x) -> Theirs { return {at::mse_loss(x[0], x[1], kSum)}; }});
  rows.push_back({"l1_loss",
                  {f({3, 5}), f({3, 5})},
                  [](O x) -> Ours { return {l1_loss(x[0], x[1])}; },
                  [](X x) -> Theirs { return {at::l1_loss(x[0], x[1], kSum)}; }});
  rows.push_back(
      {"binary_cross_entropy",
       {f({3, 5}, 0.01, 0.99), f({3, 5}, 0, 1)},
       [](O x) -> Ours { return {binary_cross_entropy(x[0], x[1]), binary_cross_entropy(to(gt(x[0], 0.5), DType::f64), detach(x[1]))}; },
       [](X x) -> Theirs {
         return {at::binary_cross_entropy(x[0], x[1], {}, kSum),
                 at::binary_cross_entropy(x[0].gt(0.5).to(at::kDouble), x[1].detach(), {}, kSum)};
       }});
  rows.push_back({"binary_cross_entropy_with_logits",
                  {f({3, 5}, -40, 40), f({3, 5}, 0, 1), f({5}, 0.5, 2)},
                  [](O x) -> Ours {
                    return {binary_cross_entropy_with_logits(x[0], x[1]), binary_cross_entropy_with_logits(x[0] * 0.1, x[1], detach(x[2]))};
                  },
                  [](X x) -> Theirs {
                    return {at::binary_cross_entropy_with_logits(x[0], x[1], {}, {}, kSum),
                            at::binary_cross_entropy_with_logits(x[0] * 0.1, x[1], {}, x[2].detach(), kSum)};
                  }});
  rows.push_back({"kl_div",
                  {f({3, 5}, -3, 0), f({3, 5}, 0.1, 1)},
                  [](O x) -> Ours { return {kl_div(x[0], x[1]), kl_div(x[0], log(x[1]), true), kl_div(x[0], detach(x[1] * 0))}; },
                  [](X x) -> Theirs {
                    return {at::kl_div(x[0], x[1], kSum), at::kl_div(x[0], x[1].log(), kSum, true),
                            at::kl_div(x[0], (x[1] * 0).detach(), kSum)};
                  }});
}

// q, k and v of 4 heads, or of 4 and 2.
std::vector<Operand> attention_operands(std::int64_t kv_heads, Operand more) {
  return {f({3, 4, 5, 6}), f({3, kv_heads, 7, 6}), f({3, kv_heads, 7, 6}), std::move(more)};
}

void attention(Rows& rows) {
  const auto theirs = [](X x, const std::optional<T>& bias, bool causal, std::optional<double> scale = {}, bool gqa = false) -> Theirs {
    return {at::scaled_dot_product_attention(x[0], x[1], x[2], bias, 0, causal, scale, gqa)};
  };
  for (const Shape& shape : {Shape{3, 4, 5, 7}, Shape{4, 5, 7}, Shape{5, 7}, Shape{3, 1, 1, 7}, Shape{1, 4, 5, 1}})
    rows.push_back({concat("attention with bias ", text_of(Attribute(shape))), attention_operands(4, f(shape)),
                    [](O x) -> Ours { return {scaled_dot_product_attention(x[0], x[1], x[2], {.attn_mask = x[3], .scale = 0.4})}; },
                    [=](X x) -> Theirs { return theirs(x, x[3], false, 0.4); }});
  rows.push_back(
      {"attention with a mask", attention_operands(4, mask({3, 1, 5, 7})),
       [](O x) -> Ours {
         return {scaled_dot_product_attention(x[0], x[1], x[2], {.attn_mask = logical_or(x[3], lt(arange(x[0], 7, DType::i64), 1))})};
       },
       [=](X x) -> Theirs { return theirs(x, x[3].logical_or(at::arange(7).lt(1)), false); }});
  rows.push_back({"attention, causal", attention_operands(4, f({1})),
                  [](O x) -> Ours { return {scaled_dot_product_attention(x[0], x[1], x[2], {.is_causal = true})}; },
                  [=](X x) -> Theirs { return theirs(x, {}, true); }});
  rows.push_back({"attention, heads in groups", attention_operands(2, f({5, 7})),
                  [](O x) -> Ours { return {scaled_dot_product_attention(x[0], x[1], x[2], {.attn_mask = x[3], .enable_gqa = true})}; },
                  [=](X x) -> Theirs { return theirs(x, x[3], false, {}, true); }});
}

Rows all_rows() {
  Rows rows;
  elementwise(rows);
  indexing(rows);
  shapes(rows);
  products(rows);
  images(rows);
  pools_and_norms(rows);
  interpolations(rows);
  losses(rows);
  attention(rows);
  positions(rows);
  return rows;
}

// The results of ours, then the gradients, by each floating operand, of the sum of all floating results, each times its cosine: a weight
// that differs from place to place.
Graph graph_of(const Row& row) {
  Builder builder("row");
  Ours operands, floating, terms;
  for (std::size_t i = 0; i < row.operands.size(); ++i) {
    operands.emplace_back(&builder, builder.graph.add_input(row.operands[i].type, concat("x", i)).value);
    if (is_floating(row.operands[i].type.dtype)) floating.push_back(operands.back());
  }
  for (const Tensor& result : row.ours(operands)) {
    builder.graph.outputs.emplace_back(result.value());
    if (is_floating(result.dtype())) terms.push_back(sum(result * cos(result)));
  }
  if (!terms.empty())
    for (const Tensor& gradient : gradients(add_n(terms), floating)) builder.graph.outputs.emplace_back(gradient.value());
  verify(builder.graph);
  return builder.graph;
}

Theirs wanted_of(const Row& row, const Theirs& inputs) {
  Theirs operands;
  for (const T& input : inputs) operands.push_back(input.clone().set_requires_grad(input.scalar_type() == at::kDouble));
  Theirs out;
  T loss;
  for (const T& result : row.theirs(operands)) {
    out.push_back(result.detach());
    if (result.scalar_type() != at::kDouble) continue;
    const T term = (result * result.cos()).sum();
    loss = loss.defined() ? loss + term : term;
  }
  if (!loss.defined()) return out;
  loss.backward();
  for (const T& operand : operands)
    if (operand.requires_grad()) out.push_back(operand.grad().defined() ? operand.grad() : at::zeros_like(operand));
  return out;
}

TEST(ComposedOps, GiveTorchsValuesAndGradients) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const Row& row : all_rows())
    for (int round = 0; round < 3; ++round) {
      SCOPED_TRACE(row.name);
      Theirs inputs;
      for (const Operand& operand : row.operands) inputs.push_back(test::random_tensor(random, operand.type, operand.low, operand.high));
      const Graph graph = graph_of(row);
      const Theirs found = test::run_graph(graph, inputs), wanted = wanted_of(row, inputs);
      ASSERT_EQ(found.size(), wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i)
        EXPECT_LT(test::relative_difference(found[i], wanted[i], 1), 1e-10) << "output " << i << "\n" << print(graph);
      if (HasFailure()) return;
    }
}

// The dropped weights are those of dropout by the same key and rows, and a query that may attend to nothing gets nothing.
TEST(ComposedOps, AttentionDropsWeights) {
  std::mt19937_64 random(3);
  const auto run = [&](double p, bool causal) {
    Builder builder("attention");
    const auto input = [&](TensorType type) { return Tensor(&builder, builder.graph.add_input(std::move(type), "x").value); };
    const TensorType type{DType::f64, {2, 3, 5, 4}};
    const Tensor q = input(type), k = input(type), v = input(type), seen = input({DType::boolean, {5, 5}});
    const Tensor key = input({DType::i64, {}}), rows = input({DType::i64, {2}});
    AttentionOptions options{.attn_mask = seen, .dropout_p = p, .key = key, .rows = rows, .is_causal = causal};
    builder.graph.outputs.emplace_back(scaled_dot_product_attention(q, k, v, options).value());
    const Tensor ones = full(q, {2, 3, 5, 5}, 1, DType::f64);
    builder.graph.outputs.emplace_back((p > 0 ? dropout(ones, p, key, rows) : ones).value());
    return builder.graph;
  };
  Theirs inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(test::random_tensor(random, {DType::f64, {2, 3, 5, 4}}));
  T seen = test::random_tensor(random, {DType::boolean, {5, 5}}, 0, 2);
  seen.select(0, 2).fill_(false);
  for (const T& more : {seen, test::random_tensor(random, {DType::i64, {}}, 0, 99), test::random_tensor(random, {DType::i64, {2}}, 0, 99)})
    inputs.push_back(more);
  for (const bool causal : {false, true}) {
    const Theirs found = test::run_graph(run(0.4, causal), inputs);
    T mask = causal ? seen.tril() : seen;
    const T scores = (inputs[0].matmul(inputs[1].transpose(-2, -1)) * 0.5).masked_fill(mask.logical_not(), -1e30);
    const T weights = scores.softmax(-1).masked_fill(mask.logical_not(), 0) * found[1];
    EXPECT_LT(test::relative_difference(found[0], weights.matmul(inputs[2])), 1e-12);
    EXPECT_EQ(found[0].select(2, 2).abs().max().item().toDouble(), 0);
  }
  EXPECT_EQ(test::run_graph(run(0, false), inputs)[0].select(2, 2).abs().max().item().toDouble(), 0);
}

}  // namespace
}  // namespace penstock
