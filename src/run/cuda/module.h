// SPDX-License-Identifier: Apache-2.0
// Our own kernels (kernels.cu) on NVIDIA's cards: loaded and launched by the driver, which is found as the program runs. No header of
// CUDA's is needed.
#pragma once

#include <memory>
#include <span>

#include "torch/kernel_argument.h"

namespace penstock::cuda {

struct Driver;  // the functions that are used of it

class Module {
 public:
  // `image`: a fat binary, as nvcc makes it, a cubin or PTX; it stays where it is. Kernels are of every card, each of which loads them when
  // it launches the first. Throws c10::Error where there is no such driver, where it is older than CUDA 12, or where it does not take the
  // image.
  explicit Module(const void* image, const char* driver = "libcuda.so.1");
  ~Module();
  Module(const Module&) = delete;

  // Throws c10::Error where the image has none of that name.
  void* find_kernel(const char* name) const;
  // On a stream (CUstream) of the current card. The driver takes the arguments' bytes before this returns; the memory that they name is to
  // stay until the kernel has run, as an allocator's that is given back to its stream does. Throws c10::Error.
  void launch(void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, void* stream) const;

 private:
  std::unique_ptr<const Driver> driver_;
  void* library_ = nullptr;
};

}  // namespace penstock::cuda
