// What the files of aten_kernels.h share.
#pragma once

#include <ATen/TensorOperators.h>

#include <cstddef>
#include <vector>

#include "torch/kernel_support.h"

namespace penstock {

using Tensors = std::vector<at::Tensor>;

// The call that gives the results what f makes of the operands: `Tensors f(const Tensors&)`. What it makes is new, so results may lie over
// operands.
template <class F>
Bound composed(const Site& site, F f) {
  return [f, in = Tensors(site.operands.begin(), site.operands.end()), out = Tensors(site.results.begin(), site.results.end()),
          accumulate = site.accumulate] {
    const Tensors values = f(in);
    for (std::size_t i = 0; i < out.size(); ++i) deliver(out[i], values[i].view(out[i].sizes()), accumulate >> i & 1u);
  };
}

// Low precision is computed in f32.
inline at::Tensor widened(const at::Tensor& x) {
  return is_low_precision(x) ? in_f32(x) : x;
}

}  // namespace penstock
