// mean, sub, mul, mean, add, rsqrt, mul, mul
KERNEL void chain(const float* p0, float* p4, const float* p8, float* p9, int64_t count) {
  using Index = unsigned;
  SHARED float partial[32];
  constexpr Index width = 8;
  for (Index row = blockIdx.x; row < static_cast<Index>(count); row += gridDim.x) {
    float s1 = 0;
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<float, 4>*>(p0 + row * width + first);
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        s1 += v0;
      }
    }
    const float v1 = block_sum(s1, partial) / 8.0f;  // mean
    float s4 = 0;
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<float, 4>*>(p0 + row * width + first);
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v2 = v0 - v1;  // sub
        const float v3 = v2 * v2;  // mul
        s4 += v3;
      }
    }
    const float v4 = block_sum(s4, partial) / 8.0f;  // mean
    const float v5 = v4 + 9.99999975e-06f;  // add
    const float v6 = 1.0f / sqrtf(v5);  // rsqrt
    for (Index first = threadIdx.x * 4; first < width; first += blockDim.x * 4) {
      const auto q0 = *reinterpret_cast<const Pack<float, 4>*>(p0 + row * width + first);
      Pack<float, 4> q9;
      #pragma unroll  // so that packs are registers
      for (int k = 0; k < 4; ++k) {
        const Index i = row * width + first + k;
        const float v0 = q0.of[k];
        const float v2 = v0 - v1;  // sub
        const float v7 = v2 * v6;  // mul
        const float v8 = p8[first + k];
        const float v9 = v7 * v8;  // mul
        q9.of[k] = static_cast<float>(v9);
      }
      *reinterpret_cast<Pack<float, 4>*>(p9 + row * width + first) = q9;
    }
    if (threadIdx.x == 0) {
      p4[row] = static_cast<float>(v4);
    }
  }
}
