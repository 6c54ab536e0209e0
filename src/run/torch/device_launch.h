// SPDX-License-Identifier: Apache-2.0
// Launches of our own kernels (src/run/cuda/kernels.cu) on a device that has them.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>

#include "torch/device_functions.h"

namespace penstock {

class DeviceKernel {
 public:
  // Throws c10::Error where there is none of that name.
  DeviceKernel(const char* name, c10::Device device);
  // One that was made as the program runs (torch/kernel_compiler.h).
  DeviceKernel(void* kernel, c10::Device device);
  // Launches the kernel as work of the device's current stream, with the kernel's arguments in order; nothing where the grid has no blocks.
  void operator()(const KernelGrid& grid, std::span<const KernelArgument> arguments) const;
  void operator()(const KernelGrid& grid, std::initializer_list<KernelArgument> arguments) const {
    (*this)(grid, std::span(arguments.begin(), arguments.size()));
  }

 private:
  c10::Device device_;
  const DeviceFunctions* functions_;
  void* kernel_;
};

// Blocks that have a row at a time, and those that have some elements at a time: no more than keep a large device busy, as they go on with
// other rows and elements.
KernelGrid row_grid(std::int64_t rows, std::int64_t width);
KernelGrid element_grid(std::int64_t elements);

// Returns the number that kernels have for the dtype of a dense tensor (torch/element_type.h); none: they do not take it.
std::optional<int> kernel_type(const at::Tensor& x);

}  // namespace penstock
