// SPDX-License-Identifier: Apache-2.0
// The grid and the arguments that a kernel of our own is launched with.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace penstock {

// The number of a kernel's blocks, x times y, and of the threads of each.
struct KernelGrid {
  unsigned x = 0, y = 1, threads = 0;
};

// An argument of a kernel: a number of its type, or where a tensor lies.
struct KernelArgument {
  at::Tensor memory;  // undefined: a number, or null
  std::array<std::byte, 8> bytes{};
  std::size_t size = 0;  // of the bytes

  template <class Number>
    requires std::is_arithmetic_v<Number>
  KernelArgument(Number number) : size(sizeof(Number)) {
    std::memcpy(bytes.data(), &number, sizeof(Number));
  }
  // Its elements; they are of the device. No tensor: null.
  KernelArgument(const at::Tensor& tensor) : memory(tensor), size(sizeof(void*)) {
    const void* const data = tensor.defined() ? tensor.const_data_ptr() : nullptr;
    std::memcpy(bytes.data(), &data, sizeof(data));
  }
};

}  // namespace penstock
