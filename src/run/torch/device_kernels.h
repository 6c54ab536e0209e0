// SPDX-License-Identifier: Apache-2.0
// Ops bound to our own kernels for devices (src/run/cuda/kernels.cu).
#pragma once

#include "torch/kernel.h"

namespace penstock {

// Each is empty where the device has no kernels of ours, or these do not take the operands.
Bound cross_entropy_by_kernel(const Site&);
Bound cross_entropy_backward_by_kernel(const Site&);
Bound layer_norm_by_kernel(const Site&);
Bound layer_norm_backward_by_kernel(const Site&);
Bound rms_norm_by_kernel(const Site&);
Bound rms_norm_backward_by_kernel(const Site&);
Bound adamw_by_kernel(const Site&);
Bound adamw_half_by_kernel(const Site&);
Bound dropout_by_kernel(const Site&);
Bound random_key_by_kernel(const Site&);
Bound embedding_by_kernel(const Site&);
Bound embedding_backward_by_kernel(const Site&);  // of rows, and of bags

// For Kernel::bind_device: our own kernel, or what is put together of ATen's operators.
template <auto own, auto composed>
Bound own_or(const Site& site) {
  Bound bound = own(site);
  return bound ? bound : composed(site);
}

}  // namespace penstock
