// SPDX-License-Identifier: Apache-2.0
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
// The nearest bf16 of each number in the upper half of its 32 bits, something in the lower half.
inline Bits nearest_halves(Vec v) {
  const Bits bits = bits_as<Bits>(v);
  const Bits nearest = bits + (0x7fffu + (bits >> 16 & 1u));
  return v == v ? nearest : bits | 0x400000u;  // a NaN stays one
}
inline Halves rounded(Vec v) {
#if defined(__AVX512BF16__)
  return bits_as<Halves>(_mm512_cvtneps_pbh(v));
#else
  return __builtin_convertvector(nearest_halves(v) >> 16, Halves);
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

template <class T>
constexpr bool kIsBf16 = sizeof(T) == sizeof(Bf16);

// 2 * kLanes elements that lie side by side: the first and the second half, or, for bf16 only, the even and the odd ones, which are read
// and written in fewer instructions. What is read in one order must be written in the same.
struct Two {
  Vec a, b;
};
template <bool kEvenAndOdd, class T>
inline Two load_two(const T* p) {
  if constexpr (!kEvenAndOdd) return {load(p), load(p + kLanes)};
  Bits pairs;
  __builtin_memcpy(&pairs, p, sizeof pairs);
  return {bits_as<Vec>(pairs << 16), bits_as<Vec>(pairs & 0xffff0000u)};
}
template <bool kEvenAndOdd, class T>
inline void store_two(T* p, Two v) {
  if constexpr (!kEvenAndOdd) {
    store(p, v.a);
    store(p + kLanes, v.b);
    return;
  }
#if defined(__AVX512BF16__)
  using Pairs = std::uint16_t __attribute__((vector_size(kLanes * 4)));
  const Pairs pairs = __builtin_shuffle(
      bits_as<Pairs>(_mm512_cvtne2ps_pbh(v.b, v.a)),
      Pairs{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
#else
  const Bits pairs = nearest_halves(v.a) >> 16 | (nearest_halves(v.b) & 0xffff0000u);
#endif
  __builtin_memcpy(p, &pairs, sizeof pairs);
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
inline __mmask16 first(std::int64_t n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
inline Vec load_part(const float* p, std::int64_t n, float rest = 0) {
  return _mm512_mask_loadu_ps(broadcast(rest), first(n), p);
}
inline void store_part(float* p, Vec v, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), v);
}
inline Vec load_part(const Bf16* p, std::int64_t n, float rest = 0) {
  return _mm512_mask_blend_ps(first(n), broadcast(rest), widened(bits_as<Halves>(_mm256_maskz_loadu_epi16(first(n), p))));
}
inline void store_part(Bf16* p, Vec v, std::int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), bits_as<__m256i>(rounded(v)));
}
#else
inline Vec load_part(const float* p, std::int64_t n, float rest = 0) {
  Vec v = broadcast(rest);
  __builtin_memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_part(float* p, Vec v, std::int64_t n) {
  __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}
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
inline float sum_of(Vec v) {
  return _mm512_reduce_add_ps(v);
}
inline float max_of(Vec v) {
  return _mm512_reduce_max_ps(v);
}
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
inline Vec max(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
inline Vec sqrt(Vec x) {
  return _mm512_sqrt_ps(x);
}
#else
inline Vec max(Vec a, Vec b) {
  return a > b ? a : b;
}
inline Vec min(Vec a, Vec b) {
  return a < b ? a : b;
}
inline Vec sqrt(Vec x) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out[i] = __builtin_sqrtf(x[i]);
  return out;
}
#endif
inline Vec abs(Vec x) {
  return bits_as<Vec>(bits_as<Bits>(x) & 0x7fffffffu);
}

// By Horner's rule; the coefficient of the highest power first.
template <class... Rest>
inline Vec polynomial(Vec x, float highest, Rest... rest) {
  Vec p = broadcast(highest);
  ((p = p * x + rest), ...);
  return p;
}

// p * 2^n for p near 1 and -250 <= n <= 250; beyond the range of f32 zero, or infinite.
inline Vec scale_by_power(Vec p, Vec n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  // In two halves: 2^128 itself is no f32.
  const Mask whole = __builtin_convertvector(n, Mask), half = whole >> 1;
  const Mask first = (half + 127) << 23, second = (whole - half + 127) << 23;
  return p * bits_as<Vec>(first) * bits_as<Vec>(second);
#endif
}

// The functions below have relative errors of about 1e-6, and of about 1e-4 where their result is to be rounded to T = Bf16: fewer terms do
// then.
//
// 2^(x * factor) = 2^n 2^f with |f| <= 1/2, for products between -250 and 250; minimax polynomials of degree 5 (an error of 1e-7) and 3 for
// 2^f. NaN stays NaN.
template <class T>
inline Vec power_of_two(Vec x, float factor) {
  const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec n = (x * factor + shift) - shift;
  const Vec f = x * factor - n;  // one fused operation: the product is not rounded
  if constexpr (kIsBf16<T>)
    return scale_by_power(polynomial(f, 0.0550089292f, 0.242210954f, 0.693282902f, 1.0f), n);
  else
    return scale_by_power(polynomial(f, 0.001327647f, 0.009675541f, 0.055507131f, 0.240221202f, 0.693146944f, 1.0f), n);
}

// e^x. Overflow is infinite; what lies below the normal numbers has fewer digits, and below e^-104 it is zero.
template <class T = float>
inline Vec exp(Vec x) {
  return power_of_two<T>(min(broadcast(90.0f), max(broadcast(-104.0f), x)), 1.44269504f);
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

template <class T>
inline Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp<T>(-x));
}

// The normal distribution's tail beyond a = |x| is e ratio, with e = e^(-a^2/2). The ratio (Mills's, over sqrt(2 pi)) is smooth and has no
// zero: minimax rational functions, whose two polynomials need not wait for each other (errors of 4e-7 and 3e-5).
struct NormalTail {
  Vec a, e, ratio;
};
template <class T>
inline NormalTail normal_tail(Vec x) {
  const Vec a = min(broadcast(14.5f), abs(x));  // where the tail is zero in f32
  const Vec e = power_of_two<T>(a * a, -0.721347520f);
  if constexpr (kIsBf16<T>)
    return {a, e, polynomial(a, 0.0628278787f, 0.278985917f, 0.500012475f) / polynomial(a, 0.157316983f, 0.704273234f, 1.35662810f, 1.0f)};
  else
    return {a, e,
            polynomial(a, 0.0171711132f, 0.120051356f, 0.362874541f, 0.499999806f) /
                polynomial(a, 0.0430463223f, 0.300729377f, 0.955926128f, 1.52361391f, 1.0f)};
}
