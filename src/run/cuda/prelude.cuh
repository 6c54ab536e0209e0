// SPDX-License-Identifier: Apache-2.0
// The names that kernels are written with, as a device's compiler has it; tests/standin/emulate.h has the same for the host's.
#pragma once

#include <cstdint>

#ifdef __CUDACC_RTC__  // which has no headers
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

// A function that a host launches; memory that the threads of a block share.
#define KERNEL extern "C" __global__
#define SHARED __shared__

// Low precision: computed with as f32, rounded to the nearest when it is made.
struct bf16 {
  unsigned short bits;
  bf16() = default;
  __device__ explicit bf16(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};
struct f16 {
  unsigned short bits;
  f16() = default;
  __device__ explicit f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};

// Puts `next` where `expected` is, unless another thread was first; what was there.
__device__ inline int64_t exchange_if(int64_t* at, int64_t expected, int64_t next) {
  using Word = unsigned long long;
  return static_cast<int64_t>(atomicCAS(reinterpret_cast<Word*>(at), static_cast<Word>(expected), static_cast<Word>(next)));
}
