// SPDX-License-Identifier: Apache-2.0
// Sums of what several members of a group give, on a device that works on streams.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

// Numbers of one dtype in a device's memory, as a tensor of one dim.
at::Tensor numbers_at(const std::byte* data, std::size_t bytes, DType dtype, c10::Device device);

// The sum of so many bytes at each of `terms`, in their order, by work on the current stream: the same bits wherever it is made. bf16 is
// added up in f32 and rounded once, where the sum is written to a bf16 tensor.
at::Tensor sum_of_terms(const std::vector<const std::byte*>& terms, std::size_t bytes, DType dtype, c10::Device device);

}  // namespace penstock
