// SPDX-License-Identifier: Apache-2.0
// The names that kernels for a GPU are written with (cuda/prelude.cuh), for the host's compiler. It includes little, as generated kernels
// are compiled while tests run. What it declares is in emulate.cpp.
#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>
#include <utility>

#define KERNEL inline
#define SHARED [[maybe_unused]] static thread_local
#define __device__

namespace penstock::emulate {

struct Dim {
  unsigned x = 0, y = 0;
};
extern constinit thread_local Dim this_thread, this_block, block_size, grid_size;

// These are calls of the thread that runs, in this line of the text: it waits for its block, or gives the others of its warp `value` and
// gets that of the one whose number differs by the bits of `distance`.
void wait_for_block(unsigned line);
std::uint64_t exchange_in_warp(unsigned all, std::uint64_t value, int distance, unsigned line);

std::uint16_t half_of(float x);
float of_half(std::uint16_t bits);

// A kernel for callers that do not know its type.
struct Kernel {
  void (*body)(const void* const* arguments) = nullptr;  // what one thread does, with a pointer to each argument
  struct Parameter {
    std::size_t size;  // in bytes
    bool writes;       // to where it points
  };
  const Parameter* parameters = nullptr;
  std::size_t count = 0;  // of them
};

template <class... A>
inline constexpr Kernel::Parameter kParametersOf[] = {{sizeof(A), std::is_pointer_v<A> && !std::is_const_v<std::remove_pointer_t<A>>}...};

template <auto kernel, class... A>
Kernel emulated(void (*)(A...)) {
  return {[](const void* const* arguments) {
            [&]<std::size_t... i>(std::index_sequence<i...>) {
              kernel(*static_cast<const A*>(arguments[i])...);
            }(std::index_sequence_for<A...>{});
          },
          kParametersOf<A...>, sizeof...(A)};
}
template <auto kernel>
Kernel emulated() {
  return emulated<kernel>(kernel);
}

}  // namespace penstock::emulate

// Low precision: computed with as f32, rounded to the nearest when it is made.
struct bf16 {
  std::uint16_t bits;
  bf16() = default;
  explicit bf16(float x) {
    std::uint32_t wide = 0;
    std::memcpy(&wide, &x, sizeof(x));
    bits = static_cast<std::uint16_t>(isnan(x) ? 0x7fc0 : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  operator float() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float x = 0;
    std::memcpy(&x, &wide, sizeof(x));
    return x;
  }
};
struct f16 {
  std::uint16_t bits;
  f16() = default;
  explicit f16(float x) : bits(penstock::emulate::half_of(x)) {}
  operator float() const { return penstock::emulate::of_half(bits); }
};

// The names that kernels use.
#define threadIdx penstock::emulate::this_thread
#define blockIdx penstock::emulate::this_block
#define blockDim penstock::emulate::block_size
#define gridDim penstock::emulate::grid_size

inline void __syncthreads(std::source_location at = std::source_location::current()) {
  penstock::emulate::wait_for_block(at.line());
}

// The exchange is one of all 32 threads of a warp.
template <class T>
T __shfl_xor_sync(unsigned all, T value, int distance, std::source_location at = std::source_location::current()) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = penstock::emulate::exchange_in_warp(all, word, distance, at.line());
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

inline int64_t exchange_if(int64_t* at, int64_t expected, int64_t next) {
  __atomic_compare_exchange_n(at, &expected, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
