// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include "torch/aten_composed.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Integers = std::vector<std::int64_t>;

constexpr std::int64_t kOnes[] = {1, 1};

const Integers& integers(const Site& site, std::string_view name) {
  return attribute<Integers>(site.op, name);
}

// The numbers with which a window goes over the image, as ATen takes them.
struct Window {
  Integers stride, padding, dilation, output_padding;
  bool transposed;
  std::int64_t groups;
};
Window window_of(const Site& site) {
  const std::size_t dims = integers(site, "stride").size();
  return {integers(site, "stride"),
          integers(site, "padding"),
          attribute_or(site.op, "dilation", Integers(dims, 1)),
          attribute_or(site.op, "output_padding", Integers(dims, 0)),
          attribute_or(site.op, "transposed", false),
          attribute_or(site.op, "groups", std::int64_t{1})};
}

// Not every processor convolves in low precision.
Bound bind_convolution(const Site& site) {
  return composed(site, [w = window_of(site)](const AtTensors& in) {
    const std::optional<T> bias = in.size() == 3 ? std::optional<T>(widened(in[2])) : std::nullopt;
    return AtTensors{
        at::convolution(widened(in[0]), widened(in[1]), bias, w.stride, w.padding, w.dilation, w.transposed, w.output_padding, w.groups)};
  });
}

// The gradients of x and weight that the mask asks for.
std::tuple<T, T, T> gradients(const T& dy, const T& x, const T& weight, const Window& w, std::array<bool, 3> mask) {
  return at::convolution_backward(widened(dy), widened(x), widened(weight), at::OptionalIntArrayRef(), w.stride, w.padding, w.dilation,
                                  w.transposed, w.output_padding, w.groups, mask);
}

// Only the shape counts of the one of x and weight that is not read, so the result, which has that shape, stands in for it.
Bound bind_backward_input(const Site& site) {
  return composed(site, [dx = site.results[0], w = window_of(site)](const AtTensors& in) {
    return AtTensors{std::get<0>(gradients(in[0], dx, in[1], w, {true, false, false}))};
  });
}

Bound bind_backward_weight(const Site& site) {
  return composed(site, [dweight = site.results[0], w = window_of(site)](const AtTensors& in) {
    return AtTensors{std::get<1>(gradients(in[0], in[1], dweight, w, {false, true, false}))};
  });
}

Bound bind_max_pool(const Site& site) {
  return [x = site.operands[0], y = site.results[0], indices = site.results[1], kernel = integers(site, "kernel_size"),
          stride = integers(site, "stride"), padding = integers(site, "padding")]() mutable {
    at::max_pool2d_with_indices_out(y, indices, x, kernel, stride, padding, kOnes, false);
  };
}

// Here, too, only the shape of x counts.
Bound bind_max_pool_backward(const Site& site) {
  return [dy = site.operands[0], indices = site.operands[1], dx = site.results[0], kernel = integers(site, "kernel_size"),
          stride = integers(site, "stride"), padding = integers(site, "padding")]() mutable {
    at::max_pool2d_with_indices_backward_out(dx, dy, dx, kernel, stride, padding, kOnes, false, indices);
  };
}

}  // namespace

std::span<const Kernel> convolution_kernels() {
  static const Kernel all[] = {
      {.name = "convolution", .bind = bind_convolution},
      {.name = "convolution_backward_input", .bind = bind_backward_input},
      {.name = "convolution_backward_weight", .bind = bind_backward_weight, .accumulates = 1},
      {.name = "max_pool2d_with_indices", .bind = bind_max_pool},
      {.name = "max_pool2d_with_indices_backward", .bind = bind_max_pool_backward},
  };
  return all;
}

}  // namespace penstock
