// silu, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul, gelu, mul
KERNEL void chain(const bf16* p0, const bf16* p3, bf16* p4, const bf16* p6, const bf16* p9, bf16* p10, const bf16* p12, const bf16* p15, bf16* p16, const bf16* p18, const bf16* p21, bf16* p22, const bf16* p24, const bf16* p27, bf16* p28, const bf16* p30, const bf16* p33, bf16* p34, const bf16* p36, const bf16* p39, bf16* p40, const bf16* p42, int64_t count) {
  using Index = unsigned;
  const Index all = static_cast<Index>(count), block = blockDim.x;
  for (Index first = (blockIdx.x * block + threadIdx.x) * 4; first < all; first += gridDim.x * block * 4) {
    const auto q0 = *reinterpret_cast<const Pack<bf16, 4>*>(p0 + first);
    const auto q3 = *reinterpret_cast<const Pack<bf16, 4>*>(p3 + first);
    const auto q6 = *reinterpret_cast<const Pack<bf16, 4>*>(p6 + first);
    const auto q9 = *reinterpret_cast<const Pack<bf16, 4>*>(p9 + first);
    const auto q12 = *reinterpret_cast<const Pack<bf16, 4>*>(p12 + first);
    const auto q15 = *reinterpret_cast<const Pack<bf16, 4>*>(p15 + first);
    const auto q18 = *reinterpret_cast<const Pack<bf16, 4>*>(p18 + first);
    const auto q21 = *reinterpret_cast<const Pack<bf16, 4>*>(p21 + first);
    const auto q24 = *reinterpret_cast<const Pack<bf16, 4>*>(p24 + first);
    const auto q27 = *reinterpret_cast<const Pack<bf16, 4>*>(p27 + first);
    const auto q30 = *reinterpret_cast<const Pack<bf16, 4>*>(p30 + first);
    const auto q33 = *reinterpret_cast<const Pack<bf16, 4>*>(p33 + first);
    const auto q36 = *reinterpret_cast<const Pack<bf16, 4>*>(p36 + first);
    const auto q39 = *reinterpret_cast<const Pack<bf16, 4>*>(p39 + first);
    Pack<bf16, 4> q4;
    Pack<bf16, 4> q10;
    Pack<bf16, 4> q16;
    Pack<bf16, 4> q22;
    Pack<bf16, 4> q28;
    Pack<bf16, 4> q34;
    Pack<bf16, 4> q40;
    #pragma unroll  // so that packs are registers
    for (int k = 0; k < 4; ++k) {
      const Index i = first + k;
      const float v0 = q0.of[k];
      const float v1 = rounded<bf16>(v0 / (1.0f + expf(-v0)));  // silu
      const float v2 = rounded<bf16>(gelu(v1));  // gelu
      const float v3 = q3.of[k];
      const float v4 = rounded<bf16>(v2 * v3);  // mul
      const float v5 = rounded<bf16>(gelu(v4));  // gelu
      const float v6 = q6.of[k];
      const float v7 = rounded<bf16>(v5 * v6);  // mul
      const float v8 = rounded<bf16>(gelu(v7));  // gelu
      const float v9 = q9.of[k];
      const float v10 = rounded<bf16>(v8 * v9);  // mul
      const float v11 = rounded<bf16>(gelu(v10));  // gelu
      const float v12 = q12.of[k];
      const float v13 = rounded<bf16>(v11 * v12);  // mul
      const float v14 = rounded<bf16>(gelu(v13));  // gelu
      const float v15 = q15.of[k];
      const float v16 = rounded<bf16>(v14 * v15);  // mul
      const float v17 = rounded<bf16>(gelu(v16));  // gelu
      const float v18 = q18.of[k];
      const float v19 = rounded<bf16>(v17 * v18);  // mul
      const float v20 = rounded<bf16>(gelu(v19));  // gelu
      const float v21 = q21.of[k];
      const float v22 = rounded<bf16>(v20 * v21);  // mul
      const float v23 = rounded<bf16>(gelu(v22));  // gelu
      const float v24 = q24.of[k];
      const float v25 = rounded<bf16>(v23 * v24);  // mul
      const float v26 = rounded<bf16>(gelu(v25));  // gelu
      const float v27 = q27.of[k];
      const float v28 = rounded<bf16>(v26 * v27);  // mul
      const float v29 = rounded<bf16>(gelu(v28));  // gelu
      const float v30 = q30.of[k];
      const float v31 = rounded<bf16>(v29 * v30);  // mul
      const float v32 = rounded<bf16>(gelu(v31));  // gelu
      const float v33 = q33.of[k];
      const float v34 = rounded<bf16>(v32 * v33);  // mul
      const float v35 = rounded<bf16>(gelu(v34));  // gelu
      const float v36 = q36.of[k];
      const float v37 = rounded<bf16>(v35 * v36);  // mul
      const float v38 = rounded<bf16>(gelu(v37));  // gelu
      const float v39 = q39.of[k];
      const float v40 = rounded<bf16>(v38 * v39);  // mul
      q4.of[k] = static_cast<bf16>(v4);
      q10.of[k] = static_cast<bf16>(v10);
      q16.of[k] = static_cast<bf16>(v16);
      q22.of[k] = static_cast<bf16>(v22);
      q28.of[k] = static_cast<bf16>(v28);
      q34.of[k] = static_cast<bf16>(v34);
      q40.of[k] = static_cast<bf16>(v40);
    }
    *reinterpret_cast<Pack<bf16, 4>*>(p4 + first) = q4;
    *reinterpret_cast<Pack<bf16, 4>*>(p10 + first) = q10;
    *reinterpret_cast<Pack<bf16, 4>*>(p16 + first) = q16;
    *reinterpret_cast<Pack<bf16, 4>*>(p22 + first) = q22;
    *reinterpret_cast<Pack<bf16, 4>*>(p28 + first) = q28;
    *reinterpret_cast<Pack<bf16, 4>*>(p34 + first) = q34;
    *reinterpret_cast<Pack<bf16, 4>*>(p40 + first) = q40;
  }
}
