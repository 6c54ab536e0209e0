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
// The first n < kLanes elements; the others read as zero and are not written.
inline Vec load_part(const float* p, std::int64_t n) {
  Vec v{};
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_part(float* p, Vec v, std::int64_t n) {
  __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

inline float sum_of(Vec v) {
  float part[kLanes];
  store(part, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  return part[0];
}
inline float max_of(Vec v) {
  float part[kLanes];
  store(part, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
  return part[0];
}
inline Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
inline Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}
inline Vec abs(Vec x) {
  return max(x, -x);
}

// e^x = 2^n e^r with |r| <= ln(2)/2; minimax polynomial of degree 6 for e^r. Below the smallest normal number: zero. NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec low = broadcast(-87.3f), high = broadcast(88.72f);
  const Vec clamped = x < low ? low : x > high ? high : x;
  const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = clamped * 1.44269504f + shift;
  const Vec n = shifted - shift;
  const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = broadcast(0.0013836842f);
  p = p * r + 0.0083748158f;
  p = p * r + 0.0416682251f;
  p = p * r + 0.1666641980f;
  p = p * r + 0.4999999106f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Mask bits, exponent;
  __builtin_memcpy(&exponent, &shifted, sizeof exponent);
  __builtin_memcpy(&bits, &p, sizeof bits);
  bits += exponent << 23;
  __builtin_memcpy(&p, &bits, sizeof p);
  return x < low ? Vec{} : x > high ? broadcast(__builtin_inff()) : p;
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
