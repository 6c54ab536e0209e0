// to, amax, sub, exp, sum, div, to, mul, sum, mul, sub, to, to
KERNEL void chain(const bf16* p0, const bf16* p7, bf16* p13, bf16* p14, int64_t count) {
  using Index = unsigned;
  SHARED float partial[32];
  constexpr Index width = 64;
  for (Index row = blockIdx.x; row < static_cast<Index>(count); row += gridDim.x) {
    float s2 = -INFINITY;
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + row * width + first);
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v1 = static_cast<float>(v0);  // to
        s2 = largest(s2, v1);
      }
    }
    const float v2 = over_block(s2, partial, largest);  // amax
    float s5 = 0;
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + row * width + first);
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v1 = static_cast<float>(v0);  // to
        const float v3 = v1 - v2;  // sub
        const float v4 = expf(v3);  // exp
        s5 += v4;
      }
    }
    const float v5 = block_sum(s5, partial);  // sum
    float s10 = 0;
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + row * width + first);
      const auto q7 = *reinterpret_cast<const Pack<bf16, 4>*>(p7 + row * width + first);
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v1 = static_cast<float>(v0);  // to
        const float v3 = v1 - v2;  // sub
        const float v4 = expf(v3);  // exp
        const float v6 = v4 / v5;  // div
        const float v7 = q7.of[k];
        const float v8 = static_cast<float>(v7);  // to
        const float v9 = v8 * v6;  // mul
        s10 += v9;
      }
    }
    const float v10 = block_sum(s10, partial);  // sum
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + row * width + first);
      const auto q7 = *reinterpret_cast<const Pack<bf16, 4>*>(p7 + row * width + first);
      Pack<bf16, 4> q13;
      Pack<bf16, 4> q14;
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v1 = static_cast<float>(v0);  // to
        const float v3 = v1 - v2;  // sub
        const float v4 = expf(v3);  // exp
        const float v6 = v4 / v5;  // div
        const float v7 = q7.of[k];
        const float v8 = static_cast<float>(v7);  // to
        const float v9 = v8 * v6;  // mul
        const float v11 = v6 * v10;  // mul
        const float v12 = v9 - v11;  // sub
        const float v13 = rounded<bf16>(static_cast<float>(v12));  // to
        const float v14 = rounded<bf16>(static_cast<float>(v6));  // to
        q13.of[k] = static_cast<bf16>(v13);
        q14.of[k] = static_cast<bf16>(v14);
      }
      *reinterpret_cast<Pack<bf16, 4>*>(p13 + row * width + first) = q13;
      *reinterpret_cast<Pack<bf16, 4>*>(p14 + row * width + first) = q14;
    }
  }
}
