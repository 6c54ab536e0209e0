// Convolution and max pooling over images [n, channels, height, width].
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;
using Integers = std::vector<std::int64_t>;

// A window's vertical and horizontal size, step, and padding around the image (zeros; when pooling, nothing).
struct Window {
  Integers kernel, stride, padding;
};

Integers pair_attribute(const Op& op, Types operands, std::string_view name) {
  const Integers& pair = attribute<Integers>(op, name);
  if (pair.size() != 2) fail(op, operands, std::string(name) + " must be two numbers");
  return pair;
}

Window read_window(const Op& op, Types operands, Integers kernel) {
  Window window{std::move(kernel), pair_attribute(op, operands, "stride"), pair_attribute(op, operands, "padding")};
  for (std::size_t i : {0, 1}) {
    require(window.kernel[i] >= 1 && window.stride[i] >= 1, op, operands, "kernel and stride must be at least 1");
    require(window.padding[i] >= 0 && window.padding[i] < window.kernel[i], op, operands, "padding must be in [0, kernel)");
  }
  return window;
}

void require_image(const Op& op, Types operands, const TensorType& x) {
  require(is_floating(x.dtype) && x.shape.size() == 4, op, operands, "needs floating x[n, channels, height, width]");
  for (std::int64_t size : x.shape) require(size >= 1, op, operands, "an image has no empty dim");
}

// Height and width of the result when the window moves over an image.
Integers places(const Op& op, Types operands, const TensorType& x, const Window& window) {
  Integers out;
  for (std::size_t i : {0, 1}) {
    const std::int64_t room = x.shape[2 + i] + 2 * window.padding[i] - window.kernel[i];
    require(room >= 0, op, operands, "the window is larger than the padded image");
    out.push_back(room / window.stride[i] + 1);
  }
  return out;
}

TensorType convolved(const Op& op, Types operands, const TensorType& x, const TensorType& weight) {
  require_image(op, operands, x);
  require(weight.dtype == x.dtype && weight.shape.size() == 4 && weight.shape[1] == x.shape[1] && weight.shape[0] >= 1, op, operands,
          "needs weight[out, channels of x, height, width] of x's dtype");
  const Integers size = places(op, operands, x, read_window(op, operands, {weight.shape[2], weight.shape[3]}));
  return {x.dtype, {x.shape[0], weight.shape[0], size[0], size[1]}};
}

// (x, weight) or (x, weight, bias[out]) -> y
std::vector<TensorType> infer_convolution(const Op& op, Types operands) {
  require_count(op, operands, 2, 3);
  const TensorType out = convolved(op, operands, operands[0], operands[1]);
  require(operands.size() == 2 || operands[2] == TensorType{out.dtype, {out.shape[1]}}, op, operands, "needs bias[out] of x's dtype");
  return {out};
}

// (dy, weight) -> dx[input_size]
std::vector<TensorType> infer_backward_input(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  const TensorType x{operands[0].dtype, attribute<Integers>(op, "input_size")};
  require_shape(op, operands, x.shape);
  require(operands[0] == convolved(op, operands, x, operands[1]), op, operands, "dy does not fit to input_size and weight");
  return {x};
}

// (dy, x) -> dweight[weight_size]
std::vector<TensorType> infer_backward_weight(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  const TensorType weight{operands[0].dtype, attribute<Integers>(op, "weight_size")};
  require_shape(op, operands, weight.shape);
  require(operands[0] == convolved(op, operands, operands[1], weight), op, operands, "dy does not fit to x and weight_size");
  return {weight};
}

TensorType pooled(const Op& op, Types operands, const TensorType& x) {
  require_image(op, operands, x);
  const Window window = read_window(op, operands, pair_attribute(op, operands, "kernel_size"));
  for (std::size_t i : {0, 1})
    require(window.padding[i] <= window.kernel[i] / 2, op, operands, "padding must be at most half of the kernel");
  const Integers size = places(op, operands, x, window);
  return {x.dtype, {x.shape[0], x.shape[1], size[0], size[1]}};
}

// x -> (y, indices): an index says where in its image, counted row after row, the maximum stood.
std::vector<TensorType> infer_max_pool(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const TensorType out = pooled(op, operands, operands[0]);
  return {out, {DType::i64, out.shape}};
}

// (dy, indices) -> dx[input_size]
std::vector<TensorType> infer_max_pool_backward(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  const TensorType x{operands[0].dtype, attribute<Integers>(op, "input_size")};
  require_shape(op, operands, x.shape);
  const TensorType y = pooled(op, operands, x);
  require(operands[0] == y && operands[1] == TensorType{DType::i64, y.shape}, op, operands, "dy and indices do not fit to input_size");
  return {x};
}

// Two ops instead of ATen's one with a mask: the gradient of x needs no x, that of the weight no weight, and either may run alone.
Tensors convolution_vjp(const VjpArguments& a) {
  const Tensor x = a.operands[0], weight = a.operands[1], dy = a.cotangents[0];
  const auto with = [&](const char* name, const Shape& size) {
    Attributes attributes = a.op.attributes;
    attributes[name] = size;
    return attributes;
  };
  Tensors out(a.operands.size());
  if (a.wanted[0]) out[0] = emit("convolution_backward_input", {dy, weight}, with("input_size", x.shape()));
  if (a.wanted[1]) out[1] = emit("convolution_backward_weight", {dy, x}, with("weight_size", weight.shape()));
  if (a.operands.size() == 3 && a.wanted[2]) out[2] = sum(dy, {0, 2, 3});
  return out;
}

Tensors max_pool_vjp(const VjpArguments& a) {
  Attributes attributes = a.op.attributes;
  attributes["input_size"] = a.operands[0].shape();
  return {emit("max_pool2d_with_indices_backward", {a.cotangents[0], a.results[1]}, std::move(attributes))};
}

// Flops: a multiplication and an addition per output element and weight of its channel.
double convolution_flops(const TensorType& y, const Shape& weight) {
  return 2 * static_cast<double>(y.elements()) * static_cast<double>(weight[1]) * static_cast<double>(weight[2] * weight[3]);
}

double flops_convolution(const Op&, Types operands, Types results) {
  return convolution_flops(results[0], operands[1].shape);
}
double flops_backward_input(const Op&, Types operands, Types) {
  return convolution_flops(operands[0], operands[1].shape);
}
double flops_backward_weight(const Op&, Types operands, Types results) {
  return convolution_flops(operands[0], results[0].shape);
}

double flops_max_pool(const Op& op, Types, Types results) {
  const Integers& kernel = attribute<Integers>(op, "kernel_size");
  return static_cast<double>(results[0].elements()) * static_cast<double>(kernel[0]) * static_cast<double>(kernel[1]);
}

double flops_max_pool_backward(const Op&, Types operands, Types) {
  return static_cast<double>(operands[0].elements());
}

}  // namespace

std::span<const OpDefinition> convolution_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "convolution",
       .infer = infer_convolution,
       .vjp = convolution_vjp,
       .flops = flops_convolution,
       .layout = by<named<"ncHW,ocKL,o->noHW">>,
       .local = local_bias},
      {.name = "convolution_backward_input",
       .infer = infer_backward_input,
       .flops = flops_backward_input,
       .layout = by<named<"noHW,ocKL->ncHW">>,
       .local = local_shape<"input_size">},
      {.name = "convolution_backward_weight",
       .infer = infer_backward_weight,
       .flops = flops_backward_weight,
       .layout = by<named<"noHW,ncHW->ocKL">>,
       .local = local_shape<"weight_size">},
      {.name = "max_pool2d_with_indices",
       .infer = infer_max_pool,
       .vjp = max_pool_vjp,
       .flops = flops_max_pool,
       .layout = by<named<"ncHW->ncHW">>},
      {.name = "max_pool2d_with_indices_backward",
       .infer = infer_max_pool_backward,
       .flops = flops_max_pool_backward,
       .layout = by<named<"ncHW->ncHW">>,
       .local = local_shape<"input_size">},
  };
  return all;
}

Tensor conv2d(Tensor x, Tensor weight, Tensor bias, std::int64_t stride, std::int64_t padding) {
  Attributes attributes = {{"stride", Integers{stride, stride}}, {"padding", Integers{padding, padding}}};
  if (!bias) return emit("convolution", {x, weight}, std::move(attributes));
  return emit("convolution", {x, weight, bias}, std::move(attributes));
}

Tensor max_pool2d(Tensor x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return emit("max_pool2d_with_indices", {x},
              {{"kernel_size", Integers{kernel, kernel}}, {"stride", Integers{stride, stride}}, {"padding", Integers{padding, padding}}});
}

}  // namespace penstock
