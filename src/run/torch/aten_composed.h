// SPDX-License-Identifier: Apache-2.0
// The helpers that the files of aten_kernels.h share.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch/kernel_support.h"

namespace penstock {

using AtTensors = std::vector<at::Tensor>;

// The call that gives the results what f makes of the operands: `AtTensors f(const AtTensors&)`. What it makes is new, so results may lie
// over operands.
template <class F>
Bound composed(const Site& site, F f) {
  return [f, in = AtTensors(site.operands.begin(), site.operands.end()), out = AtTensors(site.results.begin(), site.results.end()),
          accumulate = site.accumulate] {
    const AtTensors values = f(in);
    for (std::size_t i = 0; i < out.size(); ++i) deliver(out[i], values[i].view(out[i].sizes()), accumulate >> i & 1u);
  };
}

// The results of one of ATen's operators.
inline AtTensors in_order_of(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& results) {
  return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

inline at::Tensor zero_like(const at::Tensor& x) {
  return at::scalar_tensor(0, x.options());
}

// Places of indices, flattened, in the part of a whole that has `count` of it from `begin` on. An index that is elsewhere is looked up at
// 0.
struct PartPlaces {
  at::Tensor at, is_here;

  PartPlaces(const at::Tensor& indices, std::int64_t begin, std::int64_t count) {
    const at::Tensor place = indices.reshape({-1}) - begin;
    is_here = place.ge(0).logical_and_(place.lt(count));
    at = at::where(is_here, place, zero_like(place));
  }
};

}  // namespace penstock
