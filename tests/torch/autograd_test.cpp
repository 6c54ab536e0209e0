// SPDX-License-Identifier: Apache-2.0
// Every gradient against PyTorch's autograd: the forward half of each random case is run by libtorch's differentiable functions.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/select_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/text.h"
#include "ops/infer.h"
#include "support/random_ops.h"
#include "support/seed.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Tensors = std::vector<T>;
using Integers = std::vector<std::int64_t>;
using Function = std::function<Tensors(const Op&, const Tensors&)>;

double real(const Op& op, std::string_view name) {
  return number_attribute(op, name);
}
std::int64_t integer(const Op& op, std::string_view name) {
  return attribute<std::int64_t>(op, name);
}
Integers dims(const Op& op, const T& x) {
  return dims_attribute(op, {}, static_cast<std::size_t>(x.dim()));
}
bool keepdim(const Op& op) {
  return attribute_or(op, "keepdim", false);
}
T other(const Op& op, const Tensors& x) {
  return x.size() > 1 ? x[1] : at::full({}, real(op, "other"), x[0].options());
}

// Our mask, drawn over ones: PyTorch has no such generator.
Tensors dropout(const Op& op, const Tensors& x) {
  Graph graph;
  graph.name = "mask";
  Op copy = op;
  copy.operands.clear();
  for (const T& input : x) {
    const DType dtype = input.scalar_type() == at::kLong ? DType::i64 : DType::f64;
    copy.operands.push_back(graph.add_input({dtype, input.sizes().vec()}, "x" + std::to_string(graph.inputs.size())));
  }
  copy.results = {graph.add_value(graph.type(copy.operands[0]))};
  graph.outputs = copy.results;
  graph.ops.push_back(copy);
  Tensors operands = x;
  operands[0] = at::ones_like(x[0]);
  return {x[0] * test::run_graph(graph, operands)[0]};
}

// By whole scores, of which a mask leaves those in the ranges.
Tensors attention_in_ranges(const Op& op, const Tensors& x) {
  const T queries = at::arange(x[0].size(2)).view({-1, 1}), keys = at::arange(x[1].size(2));
  const T first = x[3].select(-1, 0).unsqueeze(1).unsqueeze(-1), end = x[3].select(-1, 1).unsqueeze(1).unsqueeze(-1);
  const T seen = keys.ge(first).logical_and(keys.lt(end));  // [batch, 1, queries, keys]
  T scores = x[0].matmul(x[1].transpose(-2, -1)) * real(op, "scale");
  if (x.size() > 4) {
    const T places = keys - queries + integer(op, "reach") - 1;
    scores = scores + x[4].index_select(1, places.flatten()).view({x[4].size(0), places.size(0), places.size(1)});
  }
  const T weights = at::softmax(scores.masked_fill(seen.logical_not(), -1e30), -1) * seen;
  return {weights.matmul(x[2])};
}

// Bags side by side, each beginning at its offset.
Tensors embedding_bag(const Op&, const Tensors& x) {
  const std::int64_t bag = x[1].size(-1);
  const T offsets = at::arange(x[1].numel() / bag) * bag;
  Integers sizes = x[1].sizes().vec();
  sizes.back() = x[0].size(1);
  return {std::get<0>(at::embedding_bag(x[0], x[1].reshape({-1}), offsets)).reshape(sizes)};
}

Tensors loss_in_parts(const Op& op, const Tensors& x) {
  const T target = (x[1] - integer(op, "begin")).unsqueeze(1);
  const T logit = x[0].gather(1, target.clamp(0, x[0].size(1) - 1)), none = at::zeros_like(logit);
  const T own = at::where(target.ge(0).logical_and(target.lt(x[0].size(1))), logit, none);
  return {at::cat({x[0].logsumexp({1}, true), own}, 1).t().unsqueeze(0)};
}

Tensors joined_loss(const Op& op, const Tensors& x) {
  const T rows = x[0].select(1, 0).logsumexp({0}) - x[0].select(1, 1).sum(0);
  return {(rows * x[1].ne(integer(op, "ignore_index"))).sum()};
}

template <auto Pool>
Tensors pooled(const Op& op, const Tensors& x) {
  return {Pool(x[0], attribute<Integers>(op, "kernel_size"), attribute<Integers>(op, "stride"), attribute<Integers>(op, "padding"),
               attribute<bool>(op, "ceil_mode"), attribute<bool>(op, "count_include_pad"), {})};
}

const Integers& size_of(const Op& op) {
  return attribute<Integers>(op, "output_size");
}
bool aligned(const Op& op) {
  return attribute<bool>(op, "align_corners");
}

const std::map<std::string, Function>& functions() {
  using O = const Op&;
  using X = const Tensors&;
  static const std::map<std::string, Function> table = {
      {"add", [](O op, X x) -> Tensors { return {x[0] + other(op, x)}; }},
      {"sub", [](O op, X x) -> Tensors { return {x[0] - other(op, x)}; }},
      {"mul", [](O op, X x) -> Tensors { return {x[0] * other(op, x)}; }},
      {"div", [](O op, X x) -> Tensors { return {x[0] / other(op, x)}; }},
      {"pow", [](O op, X x) -> Tensors { return {x[0].pow(real(op, "exponent"))}; }},
      {"pow.Tensor_Tensor", [](O, X x) -> Tensors { return {x[0].pow(x[1])}; }},
      {"log1p", [](O, X x) -> Tensors { return {x[0].log1p()}; }},
      {"logical_and", [](O, X x) -> Tensors { return {x[0].logical_and(x[1])}; }},
      {"maximum", [](O, X x) -> Tensors { return {at::maximum(x[0], x[1])}; }},
      {"minimum", [](O, X x) -> Tensors { return {at::minimum(x[0], x[1])}; }},
      {"gt", [](O op, X x) -> Tensors { return {x[0].gt(other(op, x))}; }},
      {"lt", [](O op, X x) -> Tensors { return {x[0].lt(other(op, x))}; }},
      {"where", [](O, X x) -> Tensors { return {at::where(x[0], x[1], x[2])}; }},
      {"neg", [](O, X x) -> Tensors { return {-x[0]}; }},
      {"abs", [](O, X x) -> Tensors { return {x[0].abs()}; }},
      {"exp", [](O, X x) -> Tensors { return {x[0].exp()}; }},
      {"log", [](O, X x) -> Tensors { return {x[0].log()}; }},
      {"sqrt", [](O, X x) -> Tensors { return {x[0].sqrt()}; }},
      {"rsqrt", [](O, X x) -> Tensors { return {x[0].rsqrt()}; }},
      {"sin", [](O, X x) -> Tensors { return {x[0].sin()}; }},
      {"cos", [](O, X x) -> Tensors { return {x[0].cos()}; }},
      {"tanh", [](O, X x) -> Tensors { return {x[0].tanh()}; }},
      {"sigmoid", [](O, X x) -> Tensors { return {x[0].sigmoid()}; }},
      {"erf", [](O, X x) -> Tensors { return {x[0].erf()}; }},
      {"relu", [](O, X x) -> Tensors { return {at::relu(x[0])}; }},
      {"silu", [](O, X x) -> Tensors { return {at::silu(x[0])}; }},
      {"gelu", [](O op, X x) -> Tensors { return {at::gelu(x[0], attribute<std::string>(op, "approximate"))}; }},
      {"sum", [](O op, X x) -> Tensors { return {x[0].sum(dims(op, x[0]), keepdim(op))}; }},
      {"mean", [](O op, X x) -> Tensors { return {x[0].mean(dims(op, x[0]), keepdim(op))}; }},
      {"amax", [](O op, X x) -> Tensors { return {x[0].amax(dims(op, x[0]), keepdim(op))}; }},
      {"cumsum", [](O op, X x) -> Tensors { return {x[0].cumsum(integer(op, "dim"))}; }},
      {"add_n",
       [](O, X x) -> Tensors {
         T sum = x[0];
         for (std::size_t i = 1; i < x.size(); ++i) sum = sum + x[i];
         return {sum};
       }},
      {"reshape", [](O op, X x) -> Tensors { return {x[0].reshape(attribute<Integers>(op, "shape"))}; }},
      {"transpose", [](O op, X x) -> Tensors { return {x[0].transpose(integer(op, "dim0"), integer(op, "dim1"))}; }},
      {"permute", [](O op, X x) -> Tensors { return {x[0].permute(attribute<Integers>(op, "dims"))}; }},
      {"expand", [](O op, X x) -> Tensors { return {x[0].expand(attribute<Integers>(op, "size"))}; }},
      {"unsqueeze", [](O op, X x) -> Tensors { return {x[0].unsqueeze(integer(op, "dim"))}; }},
      {"squeeze", [](O op, X x) -> Tensors { return {x[0].squeeze(integer(op, "dim"))}; }},
      {"slice",
       [](O op, X x) -> Tensors {
         return {x[0].slice(integer(op, "dim"), integer(op, "start"), integer(op, "end"), integer(op, "step"))};
       }},
      {"slice_backward",
       [](O op, X x) -> Tensors {
         return {at::slice_backward(x[0], attribute<Integers>(op, "input_sizes"), integer(op, "dim"), integer(op, "start"),
                                    integer(op, "end"), integer(op, "step"))};
       }},
      {"select", [](O op, X x) -> Tensors { return {x[0].select(integer(op, "dim"), integer(op, "index"))}; }},
      {"select_backward",
       [](O op, X x) -> Tensors {
         return {at::select_backward(x[0], attribute<Integers>(op, "input_sizes"), integer(op, "dim"), integer(op, "index"))};
       }},
      {"cat", [](O op, X x) -> Tensors { return {at::cat(x, integer(op, "dim"))}; }},
      {"split", [](O op, X x) -> Tensors { return x[0].split(integer(op, "split_size"), integer(op, "dim")); }},
      {"to", [](O op, X x) -> Tensors { return {x[0].to(scalar_type(attribute<DType>(op, "dtype")))}; }},
      {"detach", [](O, X x) -> Tensors { return {x[0].detach()}; }},
      {"gather", [](O op, X x) -> Tensors { return {x[0].gather(integer(op, "dim"), x[1])}; }},
      {"scatter.src", [](O op, X x) -> Tensors { return {x[0].scatter(integer(op, "dim"), x[1], x[2])}; }},
      {"scatter_add", [](O op, X x) -> Tensors { return {x[0].scatter_add(integer(op, "dim"), x[1], x[2])}; }},
      {"index_select", [](O op, X x) -> Tensors { return {x[0].index_select(integer(op, "dim"), x[1])}; }},
      {"index_add", [](O op, X x) -> Tensors { return {x[0].index_add(integer(op, "dim"), x[1], x[2])}; }},
      {"sort.stable",
       [](O op, X x) -> Tensors {
         const auto [values, places] = x[0].sort(integer(op, "dim"), attribute<bool>(op, "descending"));
         return {values, places};
       }},
      {"topk",
       [](O op, X x) -> Tensors {
         const auto [values, places] = x[0].topk(integer(op, "k"), integer(op, "dim"), attribute<bool>(op, "largest"));
         return {values, places};
       }},
      {"constrain", [](O, X x) -> Tensors { return {x[0]}; }},
      {"stage_boundary", [](O, X x) -> Tensors { return {x[0]}; }},
      {"full",
       [](O op, X) -> Tensors {
         return {at::full(attribute<Integers>(op, "size"), real(op, "fill_value"),
                          at::TensorOptions(scalar_type(attribute<DType>(op, "dtype"))))};
       }},
      {"linear", [](O, X x) -> Tensors { return {at::linear(x[0], x[1], x.size() > 2 ? std::optional<T>(x[2]) : std::nullopt)}; }},
      {"mm", [](O, X x) -> Tensors { return {x[0].mm(x[1])}; }},
      {"bmm", [](O, X x) -> Tensors { return {at::bmm(x[0], x[1])}; }},
      {"addmm", [](O, X x) -> Tensors { return {at::addmm(x[0], x[1], x[2])}; }},
      {"matmul", [](O, X x) -> Tensors { return {x[0].matmul(x[1])}; }},
      {"convolution",
       [](O op, X x) -> Tensors {
         const Integers& stride = attribute<Integers>(op, "stride");
         const Integers ones(stride.size(), 1), zeros(stride.size(), 0);
         return {at::convolution(x[0], x[1], x.size() > 2 ? std::optional<T>(x[2]) : std::nullopt, stride, attribute<Integers>(op, "padding"),
                                 attribute_or(op, "dilation", ones), attribute_or(op, "transposed", false),
                                 attribute_or(op, "output_padding", zeros), attribute_or(op, "groups", std::int64_t{1}))};
       }},
      {"avg_pool2d", pooled<at::avg_pool2d>},
      {"avg_pool3d", pooled<at::avg_pool3d>},
      {"upsample_nearest1d", [](O op, X x) -> Tensors { return {at::upsample_nearest1d(x[0], size_of(op))}; }},
      {"upsample_nearest2d", [](O op, X x) -> Tensors { return {at::upsample_nearest2d(x[0], size_of(op))}; }},
      {"upsample_nearest3d", [](O op, X x) -> Tensors { return {at::upsample_nearest3d(x[0], size_of(op))}; }},
      {"upsample_linear1d", [](O op, X x) -> Tensors { return {at::upsample_linear1d(x[0], size_of(op), aligned(op))}; }},
      {"upsample_bilinear2d", [](O op, X x) -> Tensors { return {at::upsample_bilinear2d(x[0], size_of(op), aligned(op))}; }},
      {"upsample_bicubic2d", [](O op, X x) -> Tensors { return {at::upsample_bicubic2d(x[0], size_of(op), aligned(op))}; }},
      {"upsample_trilinear3d", [](O op, X x) -> Tensors { return {at::upsample_trilinear3d(x[0], size_of(op), aligned(op))}; }},
      {"max_pool2d_with_indices",
       [](O op, X x) -> Tensors {
         return {at::max_pool2d(x[0], attribute<Integers>(op, "kernel_size"), attribute<Integers>(op, "stride"),
                                attribute<Integers>(op, "padding"))};
       }},
      {"native_batch_norm",
       [](O op, X x) -> Tensors { return {at::batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, real(op, "eps"), false)}; }},
      {"native_layer_norm",
       [](O op, X x) -> Tensors {
         const bool affine = x.size() > 1;
         return {at::layer_norm(x[0], {x[0].size(-1)}, affine ? std::optional<T>(x[1]) : std::nullopt,
                                affine ? std::optional<T>(x[2]) : std::nullopt, real(op, "eps"))};
       }},
      {"_fused_rms_norm", [](O op, X x) -> Tensors { return {at::rms_norm(x[0], {x[0].size(-1)}, x[1], real(op, "eps"))}; }},
      {"softmax", [](O op, X x) -> Tensors { return {at::softmax(x[0], integer(op, "dim"))}; }},
      {"log_softmax", [](O op, X x) -> Tensors { return {at::log_softmax(x[0], integer(op, "dim"))}; }},
      {"scaled_dot_product_attention",
       [](O op, X x) -> Tensors {
         const bool causal = attribute<bool>(op, "is_causal");
         if (x.size() == 3) return {at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, causal, real(op, "scale"))};
         T scores = x[0].matmul(x[1].transpose(-2, -1)) * real(op, "scale") + x[3];
         if (causal) scores = scores.masked_fill(at::ones_like(scores).tril().eq(0), -INFINITY);
         return {at::softmax(scores, -1).matmul(x[2])};
       }},
      {"attention_in_ranges", attention_in_ranges},
      {"embedding", [](O, X x) -> Tensors { return {at::embedding(x[0], x[1])}; }},
      {"embedding_bag", embedding_bag},
      {"cross_entropy",
       [](O op, X x) -> Tensors { return {at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Sum, integer(op, "ignore_index"))}; }},
      {"cross_entropy_parts", loss_in_parts},
      {"cross_entropy_join", joined_loss},
      {"binary_cross_entropy", [](O, X x) -> Tensors { return {at::binary_cross_entropy(x[0], x[1], {}, at::Reduction::None)}; }},
      {"dropout", dropout},
  };
  return table;
}

// The loss by libtorch's functions, differentiable in the inputs.
T loss_of(const Graph& graph, const Tensors& inputs) {
  Tensors values(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].index()] = inputs[i];
  for (const Op& op : graph.ops) {
    if (op.phase == Phase::backward) continue;
    Tensors operands;
    for (ValueId operand : op.operands) operands.push_back(values[operand.index()]);
    const auto function = functions().find(op.name);
    if (function == functions().end()) throw std::runtime_error("autograd_test has no function for " + op.name);
    const Tensors results = function->second(op, operands);
    for (std::size_t r = 0; r < results.size(); ++r) values[op.results[r].index()] = results[r];
  }
  return values[graph.outputs[0].index()];
}

TEST(Gradients, EqualAutograd) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 10; ++round)
    for (const test::OpCase& c : test::random_cases(random)) {
      Tensors inputs;
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        const auto& range = c.inputs[i];
        inputs.push_back(test::random_tensor(random, c.graph.type(c.graph.inputs[i]), range.low, range.high, range.gap));
      }
      const Tensors ours = test::run_graph(c.graph, inputs);
      for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].requires_grad_(c.inputs[i].differentiable);
      const T loss = loss_of(c.graph, inputs);
      loss.backward();
      const double scale = std::max(1.0, std::abs(loss.item().toDouble()));
      EXPECT_NEAR(ours[0].item().toDouble(), loss.item().toDouble(), 1e-12 * scale) << c.op;
      std::size_t next = 1;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!c.inputs[i].differentiable) continue;
        const T expected = inputs[i].grad().defined() ? inputs[i].grad() : at::zeros_like(inputs[i]);
        EXPECT_LT(test::relative_difference(ours[next++], expected, 1), 1e-11) << c.op << ", input " << i << "\n" << print(c.graph);
      }
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace penstock
