// SPDX-License-Identifier: Apache-2.0
// Convolution over sequences, images and volumes [n, channels, ...] with one to three dims of places, and max pooling over images.
#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// A number for each dim of places.
Integers places_attribute(const Op& op, Types operands, std::string_view name, std::size_t dims,
                          std::optional<std::int64_t> otherwise = {}) {
  if (otherwise && !op.attributes.contains(name)) return Integers(dims, *otherwise);
  const Integers& numbers = attribute<Integers>(op, name);
  if (numbers.size() != dims) fail(op, operands, concat(name, " must be ", counted(static_cast<std::int64_t>(dims), "number")));
  return numbers;
}

bool all_from(const Integers& numbers, std::int64_t least) {
  return std::ranges::all_of(numbers, [&](std::int64_t n) { return n >= least; });
}

// A window's size, step, and padding around the image (zeros; when pooling, nothing), in each dim. Its places lie `dilation` apart. A
// transposed convolution goes from the window's steps to the image, and leaves `output_padding` places more at its end.
struct Window {
  Integers kernel, stride, padding, dilation, output_padding;
  bool transposed = false;
};

Window read_window(const Op& op, Types operands, Integers kernel) {
  const std::size_t dims = kernel.size();
  Window window{std::move(kernel),
                places_attribute(op, operands, "stride", dims),
                places_attribute(op, operands, "padding", dims),
                places_attribute(op, operands, "dilation", dims, 1),
                places_attribute(op, operands, "output_padding", dims, 0),
                attribute_or(op, "transposed", false)};
  require(all_from(window.kernel, 1) && all_from(window.stride, 1), op, operands, "kernel and stride must be at least 1");
  require(all_from(window.padding, 0), op, operands, "padding must be at least 0");
  require(all_from(window.dilation, 1), op, operands, "dilation must be at least 1");
  for (std::size_t i = 0; i < dims; ++i)
    require(window.output_padding[i] >= 0 &&
                window.output_padding[i] < (window.transposed ? std::max(window.stride[i], window.dilation[i]) : 1),
            op, operands, "output_padding must be below stride or dilation, and 0 of what is not transposed");
  return window;
}

void require_image(const Op& op, Types operands, const TensorType& x) {
  require(is_floating(x.dtype) && x.shape.size() >= 3 && x.shape.size() <= 5, op, operands,
          "needs floating x[n, channels, ...] with one to three dims of places");
  require(all_from(x.shape, 1), op, operands, "an image has no empty dim");
}

// The result's places when the window moves over an image.
Integers places(const Op& op, Types operands, const TensorType& x, const Window& window) {
  Integers out;
  for (std::size_t i = 0; i < window.kernel.size(); ++i) {
    const std::int64_t reach = window.dilation[i] * (window.kernel[i] - 1) + 1, size = x.shape[2 + i];
    if (window.transposed) {
      out.push_back((size - 1) * window.stride[i] - 2 * window.padding[i] + reach + window.output_padding[i]);
      require(out.back() >= 1, op, operands, "the padding leaves nothing of the image");
      continue;
    }
    const std::int64_t room = size + 2 * window.padding[i] - reach;
    require(room >= 0, op, operands, "the window is larger than the padded image");
    out.push_back(room / window.stride[i] + 1);
  }
  return out;
}

// The weight is [out, channels of x / groups, ...], that of a transposed convolution [channels of x, out / groups, ...].
TensorType convolved(const Op& op, Types operands, const TensorType& x, const TensorType& weight) {
  require_image(op, operands, x);
  const std::int64_t groups = attribute_or(op, "groups", std::int64_t{1}), channels = x.shape[1];
  require(weight.dtype == x.dtype && weight.shape.size() == x.shape.size() && all_from(weight.shape, 1), op, operands,
          "needs a weight of x's dtype and as many dims");
  const bool transposed = attribute_or(op, "transposed", false);
  const std::int64_t in = transposed ? weight.shape[0] : weight.shape[1] * groups;
  if (in != channels) fail(op, operands, concat("x has ", counted(channels, "channel"), ", the weight is for ", in));
  require(groups >= 1 && weight.shape[0] % groups == 0, op, operands, "the weight's first dim does not divide into the groups");
  const Integers size = places(op, operands, x, read_window(op, operands, {weight.shape.begin() + 2, weight.shape.end()}));
  TensorType out{x.dtype, {x.shape[0], transposed ? weight.shape[1] * groups : weight.shape[0]}};
  out.shape.insert(out.shape.end(), size.begin(), size.end());
  return out;
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
  require(x.shape.size() == 4, op, operands, "needs floating x[n, channels, height, width]");
  require_image(op, operands, x);
  const Window window = read_window(op, operands, places_attribute(op, operands, "kernel_size", 2));
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
  Tensors out(a.operands.size());
  if (a.wanted[0]) out[0] = emit("convolution_backward_input", {dy, weight}, with(a.op.attributes, "input_size", x.shape()));
  if (a.wanted[1]) out[1] = emit("convolution_backward_weight", {dy, x}, with(a.op.attributes, "weight_size", weight.shape()));
  if (a.operands.size() == 3 && a.wanted[2]) {
    Integers dims(static_cast<std::size_t>(dy.rank()) - 1);
    std::iota(dims.begin(), dims.end(), 1);
    dims[0] = 0;
    out[2] = sum(dy, dims);
  }
  return out;
}

Tensors max_pool_vjp(const VjpArguments& a) {
  return {emit("max_pool2d_with_indices_backward", {a.cotangents[0], a.results[1]},
               with(a.op.attributes, "input_size", a.operands[0].shape()))};
}

// Flops: a multiplication and an addition for each place of the image (transposed: of x) and weight that meets one of its channels.
double convolution_flops(const Op& op, const TensorType& x, const TensorType& y, const TensorType& weight) {
  const TensorType& steps = attribute_or(op, "transposed", false) ? x : y;
  return 2 * static_cast<double>(steps.elements()) * static_cast<double>(weight.elements() / weight.shape[0]);
}

double flops_convolution(const Op& op, Types operands, Types results) {
  return convolution_flops(op, operands[0], results[0], operands[1]);
}
double flops_backward_input(const Op& op, Types operands, Types results) {
  return convolution_flops(op, results[0], operands[0], operands[1]);
}
double flops_backward_weight(const Op& op, Types operands, Types results) {
  return convolution_flops(op, operands[1], operands[0], results[0]);
}

// The dims of x, weight and y that are one. Groups' channels are not cut, as a member's would have to be whole groups.
struct ConvolutionDims {
  std::string x, weight, y;
};
ConvolutionDims convolution_dims(const LayoutSite& site) {
  const std::string places(site.operands[0].shape.size() - 2, 'H');
  if (attribute_or(site.op, "groups", std::int64_t{1}) != 1) return {"nC" + places, "OI" + places, "nO" + places};
  const bool transposed = attribute_or(site.op, "transposed", false);
  return {"nc" + places, (transposed ? "co" : "oc") + places, "no" + places};
}
DimNumbers convolution_numbers(const LayoutSite& site) {
  const auto [x, weight, y] = convolution_dims(site);
  return numbers_of(concat(x, ",", weight, ",", y.substr(1, 1), "->", y), site);
}
DimNumbers backward_input_numbers(const LayoutSite& site) {
  const auto [x, weight, y] = convolution_dims(site);
  return numbers_of(concat(y, ",", weight, "->", x), site);
}
DimNumbers backward_weight_numbers(const LayoutSite& site) {
  const auto [x, weight, y] = convolution_dims(site);
  return numbers_of(concat(y, ",", x, "->", weight), site);
}

double flops_max_pool(const Op& op, Types, Types results) {
  const Integers& kernel = attribute<Integers>(op, "kernel_size");
  return static_cast<double>(results[0].elements()) * static_cast<double>(kernel[0]) * static_cast<double>(kernel[1]);
}

// Throws Error unless x has so many dims of places.
void require_dims(std::string_view function, Tensor x, int dims) {
  constexpr std::string_view kPlaces[] = {"length", "height, width", "depth, height, width"};
  if (x.rank() != dims + 2) throw Error(concat(function, ": needs x[n, channels, ", kPlaces[dims - 1], "], not ", x.type().text()));
}

}  // namespace

std::span<const OpDefinition> convolution_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "convolution",
       .infer = infer_convolution,
       .vjp = convolution_vjp,
       .flops = flops_convolution,
       .layout = by<convolution_numbers>,
       .local = local_bias},
      {.name = "convolution_backward_input",
       .infer = infer_backward_input,
       .flops = flops_backward_input,
       .layout = by<backward_input_numbers>,
       .local = local_shape<"input_size">},
      {.name = "convolution_backward_weight",
       .infer = infer_backward_weight,
       .flops = flops_backward_weight,
       .layout = by<backward_weight_numbers>,
       .local = local_shape<"weight_size">},
      {.name = "max_pool2d_with_indices",
       .infer = infer_max_pool,
       .vjp = max_pool_vjp,
       .flops = flops_max_pool,
       .layout = by<named<"ncHW->ncHW">>},
      {.name = "max_pool2d_with_indices_backward",
       .infer = infer_max_pool_backward,
       .flops = flops_by_operand<1>,
       .layout = by<named<"ncHW->ncHW">>,
       .local = local_shape<"input_size">},
  };
  return all;
}

Tensor convolution(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  const std::size_t dims = static_cast<std::size_t>(std::max(x.rank() - 2, 1));
  const auto of_all = [&](Integers numbers) { return numbers.size() == 1 ? Integers(dims, numbers[0]) : std::move(numbers); };
  const auto other_than = [](const Integers& numbers, std::int64_t usual) {
    return std::ranges::any_of(numbers, [&](std::int64_t n) { return n != usual; });
  };
  Attributes attributes = {{"stride", of_all(std::move(options.stride))}, {"padding", of_all(std::move(options.padding))}};
  if (other_than(options.dilation, 1)) attributes["dilation"] = of_all(std::move(options.dilation));
  if (options.groups != 1) attributes["groups"] = options.groups;
  if (options.transposed) attributes["transposed"] = true;
  if (other_than(options.output_padding, 0)) attributes["output_padding"] = of_all(std::move(options.output_padding));
  if (!bias) return emit("convolution", {x, weight}, std::move(attributes));
  return emit("convolution", {x, weight, bias}, std::move(attributes));
}

Tensor conv1d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv1d", x, 1);
  return convolution(x, weight, bias, std::move(options));
}

Tensor conv2d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv2d", x, 2);
  return convolution(x, weight, bias, std::move(options));
}

Tensor conv3d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv3d", x, 3);
  return convolution(x, weight, bias, std::move(options));
}

Tensor conv_transpose1d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv_transpose1d", x, 1);
  options.transposed = true;
  return convolution(x, weight, bias, std::move(options));
}

Tensor conv_transpose2d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv_transpose2d", x, 2);
  options.transposed = true;
  return convolution(x, weight, bias, std::move(options));
}

Tensor conv_transpose3d(Tensor x, Tensor weight, Tensor bias, ConvolutionOptions options) {
  require_dims("conv_transpose3d", x, 3);
  options.transposed = true;
  return convolution(x, weight, bias, std::move(options));
}

Tensor max_pool2d(Tensor x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return emit("max_pool2d_with_indices", {x},
              {{"kernel_size", Integers{kernel, kernel}}, {"stride", Integers{stride, stride}}, {"padding", Integers{padding, padding}}});
}

}  // namespace penstock
