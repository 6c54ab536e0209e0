// gt, to
KERNEL void chain(const float* p0, f16* p2, int64_t count) {
  using Index = unsigned;
  const Index all = static_cast<Index>(count), block = blockDim.x;
  for (Index first = (blockIdx.x * block + threadIdx.x) * 4; first < all; first += gridDim.x * block * 4) {
    Pack<f16, 4> q2;
    #pragma unroll  // so that packs are registers
    for (int k = 0; k < 4; ++k) {
      const Index i = first + k;
      const float v0 = p0[i / 12 + i / 6 % 2 * 5 + i % 6 * 10];
      const bool v1 = v0 > 0.5f;  // gt
      const float v2 = rounded<f16>(static_cast<float>(v1));  // to
      q2.of[k] = static_cast<f16>(v2);
    }
    *reinterpret_cast<Pack<f16, 4>*>(p2 + first) = q2;
  }
}
