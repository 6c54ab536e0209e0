// SPDX-License-Identifier: Apache-2.0
// Functions that the threads of a block do together, and elements that a thread has at once: for kernels.cu and for generated kernels.

template <class E, int n>
struct alignas(sizeof(E) * n) Pack {
  E of[n];
};

// Returns to every thread of a block what f makes of the x of all of them. `partial` is shared, of 32.
template <class T, class F>
__device__ inline T over_block(T x, T* partial, F f) {
  for (int distance = 16; distance > 0; distance /= 2) x = f(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
  __syncthreads();  // until then others may read what an earlier call has put there
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) x = f(x, partial[warp]);
  return x;
}
template <class T>
__device__ inline T block_sum(T x, T* partial) {
  return over_block(x, partial, [](T a, T b) { return a + b; });
}
