// Vectors of f32 and the functions on them. Included by each vector_<set>.cpp inside its anonymous namespace; nothing here may come from
// the standard library, because an inline function compiled for AVX-512 must not be the copy that the linker keeps for everybody.

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Vec = float __attribute__((vector_size(kLanes * 4)));
using Mask = std::int32_t __attribute__((vector_size(kLanes * 4)));

inline Vec broadcast(float x) {
  return x - Vec{};
}
inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// A vector of bf16 is widened when it is loaded and rounded when it is stored. bf16 instructions take numbers below 2^-126 for zero.
using Bits = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using Halves = std::uint16_t __attribute__((vector_size(kLanes * 2)));
template <class To, class From>
inline To bits_as(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline Vec widened(Halves halves) {
  return bits_as<Vec>(__builtin_convertvector(halves, Bits) << 16);
}
inline Halves rounded(Vec v) {
#if defined(__AVX512BF16__)
  return bits_as<Halves>(_mm512_cvtneps_pbh(v));
#else
  const Bits bits = bits_as<Bits>(v);
  const Bits nearest = bits + (0x7fffu + (bits >> 16 & 1u));
  return __builtin_convertvector((v == v ? nearest : bits | 0x400000u) >> 16, Halves);  // a NaN stays one
#endif
}
inline Vec load(const Bf16* p) {
  Halves halves;
  __builtin_memcpy(&halves, p, sizeof halves);
  return widened(halves);
}
inline void store(Bf16* p, Vec v) {
  const Halves halves = rounded(v);
  __builtin_memcpy(p, &halves, sizeof halves);
}
inline float number(float x) {
  return x;
}
inline float number(Bf16 x) {
  return bits_as<float>(std::uint32_t{x.bits} << 16);
}
inline void set(float* p, float x) {
  *p = x;
}
inline void set(Bf16* p, float x) {
  p->bits = rounded(broadcast(x))[0];
}

// The first n < kLanes elements; the others read as `rest` and are not written.
#if defined(__AVX512F__)
inline __mmask16 first(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline Vec load_part(const float* p, std::int64_t n, float rest = 0) { return _mm512_mask_loadu_ps(broadcast(rest), first(n), p); }
inline void store_part(float* p, Vec v, std::int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
inline Vec load_part(const Bf16* p, std::int64_t n, float rest = 0) {
  return _mm512_mask_blend_ps(first(n), broadcast(rest), widened(bits_as<Halves>(_mm256_maskz_loadu_epi16(first(n), p))));
}
inline void store_part(Bf16* p, Vec v, std::int64_t n) { _mm256_mask_storeu_epi16(p, first(n), bits_as<__m256i>(rounded(v))); }
#else
inline Vec load_part(const float* p, std::int64_t n, float rest = 0) {
  Vec v = broadcast(rest);
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_part(float* p, Vec v, std::int64_t n) { __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float)); }
inline Vec load_part(const Bf16* p, std::int64_t n, float rest = 0) {
  Vec v = broadcast(rest);
  for (int i = 0; i < n; ++i) v[i] = number(p[i]);
  return v;
}
inline void store_part(Bf16* p, Vec v, std::int64_t n) {
  const Halves halves = rounded(v);
  __builtin_memcpy(p, &halves, static_cast<std::size_t>(n) * sizeof(Bf16));
}
#endif

// Over the lanes.
#if defined(__AVX512F__)
inline float sum_of(Vec v) { return _mm512_reduce_add_ps(v); }
inline float max_of(Vec v) { return _mm512_reduce_max_ps(v); }
#else
template <class F>
inline float fold(Vec v, F f) {
  float part[kLanes];
  store(part, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = f(part[i], part[i + width]);
  return part[0];
}
inline float sum_of(Vec v) {
  return fold(v, [](float a, float b) { return a + b; });
}
inline float max_of(Vec v) {
  return fold(v, [](float a, float b) { return a > b ? a : b; });
}
#endif

// Where one is NaN: b.
#if defined(__AVX512F__)
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec sqrt(Vec x) { return _mm512_sqrt_ps(x); }
#else
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
inline Vec sqrt(Vec x) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out[i] = __builtin_sqrtf(x[i]);
  return out;
}
#endif
inline Vec abs(Vec x) { return max(x, -x); }

// p * 2^n for p near 1 and -126 <= n <= 128.
inline Vec scale_by_power(Vec p, Vec n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  // In two halves: 2^128 itself is no f32.
  const Mask whole = __builtin_convertvector(n, Mask), half = whole >> 1;
  const Mask first = (half + 127) << 23, second = (whole - half + 127) << 23;
  Vec a, b;
  __builtin_memcpy(&a, &first, sizeof a);
  __builtin_memcpy(&b, &second, sizeof b);
  return p * a * b;
#endif
}

// e^x = 2^n e^r with |r| <= ln(2)/2; minimax polynomial of degree 6 for e^r. NaN stays NaN, overflow is infinite, and what would lie
// near or below the smallest normal number is zero.
inline Vec exp(Vec x) {
  const Vec low = broadcast(-87.0f);
  const Vec clamped = min(broadcast(90.0f), max(low, x));
  const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (clamped * 1.44269504f + shift) - shift;
  const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(0.0013836842f);
  p = p * r + 0.0083748158f;
  p = p * r + 0.0416682251f;
  p = p * r + 0.1666641980f;
  p = p * r + 0.4999999106f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return x < low ? Vec{} : scale_by_power(p, n);
}

// ln x for positive normal x: x = 2^n m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
inline Vec log(Vec x) {
  Mask bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const Mask exponent = (bits - 0x3f3504f3) >> 23;
  bits -= exponent << 23;
  Vec m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const Vec s = (m - 1.0f) / (m + 1.0f), q = s * s;
  const Vec series = 1.0f + q * (0.333333333f + q * (0.2f + q * (0.142857143f + q * 0.111111111f)));
  return __builtin_convertvector(exponent, Vec) * 0.693147181f + 2.0f * s * series;
}

inline Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}

struct Normal {
  Vec cdf, density;
};
// The normal distribution at x. The tail is erfc(z) = e^(-z^2) R(z), z = |x|/sqrt(2), with a minimax polynomial of degree 8 in
// 1 / (1 + 0.4 z) for R: one exponential serves both, and no case is special.
inline Normal normal(Vec x) {
  const Vec z = abs(x) * 0.70710678f;
  const Vec t = 1.0f / (1.0f + 0.4f * z);
  Vec r = broadcast(0.0723060146f);
  r = r * t - 0.3886701465f;
  r = r * t + 0.6814731359f;
  r = r * t - 0.3832182288f;
  r = r * t + 0.4256177247f;
  r = r * t + 0.1271066219f;
  r = r * t + 0.2413341105f;
  r = r * t + 0.2239712775f;
  r = r * t + 7.936495240e-5f;
  const Vec e = exp(-z * z);
  const Vec tail = 0.5f * e * r;
  return {x < Vec{} ? tail : 1.0f - tail, e * 0.39894228f};
}
