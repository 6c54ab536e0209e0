// SPDX-License-Identifier: Apache-2.0
// Copies between tensors that may be views.
#pragma once

#include "torch/kernel.h"

namespace penstock {

// The call that copies `from` into `to` (equal shapes; dtypes may differ). Rows that are dense in both are copied by our own loop, as a
// strided copy of libtorch's costs microseconds before it moves a byte. Empty where both are the same memory in the same order.
Bound bind_copy(const at::Tensor& to, const at::Tensor& from);

}  // namespace penstock
