// add, gelu, mul
KERNEL void chain(const bf16* p0, const bf16* p1, bf16* p4, int64_t count) {
  using Index = unsigned;
  const Index all = static_cast<Index>(count), block = blockDim.x;
  for (Index first = (blockIdx.x * block + threadIdx.x) * 4; first < all; first += gridDim.x * block * 4) {
    const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + first);
    Pack<bf16, 4> q4;
    #pragma unroll  // so that packs are registers
    for (int k = 0; k < 4; ++k) {
      const Index i = first + k;
      const float v0 = q0.of[k];
      const float v1 = p1[i % 6];
      const float v2 = rounded<bf16>(v0 + v1);  // add
      const float v3 = rounded<bf16>(gelu_tanh(v2));  // gelu
      const float v4 = rounded<bf16>(v3 * 0.100097656f);  // mul
      q4.of[k] = static_cast<bf16>(v4);
    }
    *reinterpret_cast<Pack<bf16, 4>*>(p4 + first) = q4;
  }
}
