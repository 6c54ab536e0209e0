// SPDX-License-Identifier: Apache-2.0
// Elementwise loops and sums over rows.

// out[i] = f(x[i], ...) over n elements, two vectors at a time.
template <class In, class Out, class F>
inline void map1(const In* x, Out* out, std::int64_t n, F f) {
  constexpr bool kEvenAndOdd = kIsBf16<In> && kIsBf16<Out>;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Two v = load_two<kEvenAndOdd>(x + i);
    store_two<kEvenAndOdd>(out + i, {f(v.a), f(v.b)});
  }
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(x + i)));
  if (i < n) store_part(out + i, f(load_part(x + i, n - i)), n - i);
}
template <class A, class B, class Out, class F>
inline void map2(const A* a, const B* b, Out* out, std::int64_t n, F f) {
  constexpr bool kEvenAndOdd = kIsBf16<A> && kIsBf16<B> && kIsBf16<Out>;
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Two v = load_two<kEvenAndOdd>(a + i), w = load_two<kEvenAndOdd>(b + i);
    store_two<kEvenAndOdd>(out + i, {f(v.a, w.a), f(v.b, w.b)});
  }
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(a + i), load(b + i)));
  if (i < n) store_part(out + i, f(load_part(a + i, n - i), load_part(b + i, n - i)), n - i);
}

template <class T>
inline void clear(T* out, std::int64_t n) {
  for (; n >= kLanes; n -= kLanes, out += kLanes) store(out, Vec{});
  if (n > 0) store_part(out, Vec{}, n);
}

template <class A, class B, class Out>
void add(const A* a, const B* b, Out* out, std::int64_t n) {
  map2(a, b, out, n, [](Vec x, Vec y) { return x + y; });
}
template <class T>
void add_n(const T* const* parts, std::size_t count, T* out, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec sum = load(parts[0] + i);
    for (std::size_t p = 1; p < count; ++p) sum += load(parts[p] + i);
    store(out + i, sum);
  }
  if (i == n) return;
  Vec sum = load_part(parts[0] + i, n - i);
  for (std::size_t p = 1; p < count; ++p) sum += load_part(parts[p] + i, n - i);
  store_part(out + i, sum, n - i);
}
template <class T>
void mul(const T* a, const T* b, T* out, std::int64_t n) {
  map2(a, b, out, n, [](Vec x, Vec y) { return x * y; });
}
template <class In, class Out>
void scale(const In* a, float factor, Out* out, std::int64_t n) {
  map1(a, out, n, [factor](Vec x) { return x * factor; });
}
template <class T>
void add_bias(const T* x, const T* bias, T* out, NormShape shape) {
  for (std::int64_t r = 0; r < shape.rows; ++r) add(x + r * shape.width, bias, out + r * shape.width, shape.width);
}

// Four rows at a time, so that `out` is read and written a quarter as often.
template <class T>
void column_sum(const T* x, float* out, NormShape shape, bool accumulate) {
  const std::int64_t width = shape.width;
  std::int64_t r = 0;
  if (!accumulate) __builtin_memset(out, 0, static_cast<std::size_t>(width) * sizeof(float));
  for (; r + 4 <= shape.rows; r += 4) {
    const T* row = x + r * width;
    std::int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes)
      store(out + c, load(out + c) + ((load(row + c) + load(row + width + c)) + (load(row + 2 * width + c) + load(row + 3 * width + c))));
    for (; c < width; ++c) out[c] += (number(row[c]) + number(row[width + c])) + (number(row[2 * width + c]) + number(row[3 * width + c]));
  }
  for (; r < shape.rows; ++r) add(out, x + r * width, out, width);
}

// gelu's "tanh" form: x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
inline Vec twice_u(Vec x) {
  return x * (1.59576912f + 0.0713548163f * x * x);
}

// The exact form: for positive x, x (1 - tail(x)); for negative x, x tail(-x).
template <class T>
void gelu(const T* x, T* out, std::int64_t n, bool tanh) {
  if (tanh)
    map1(x, out, n, [](Vec v) { return v * sigmoid<T>(twice_u(v)); });
  else
    map1(x, out, n, [](Vec v) {
      const NormalTail tail = normal_tail<T>(v);
      return max(Vec{}, v) - tail.a * tail.e * tail.ratio;
    });
}

template <class T>
void gelu_backward(const T* dy, const T* x, T* dx, std::int64_t n, bool tanh) {
  if (tanh)
    map2(dy, x, dx, n, [](Vec d, Vec v) {
      const Vec s = sigmoid<T>(twice_u(v));
      return d * (s + v * s * (1.0f - s) * (1.59576912f + 0.214064449f * v * v));
    });
  else
    map2(dy, x, dx, n, [](Vec d, Vec v) {
      const NormalTail tail = normal_tail<T>(v);
      const Vec slope = tail.e * (tail.ratio - 0.39894228f * tail.a);
      return d * (v < Vec{} ? slope : 1.0f - slope);
    });
}

template <class T>
void silu(const T* x, T* out, std::int64_t n) {
  map1(x, out, n, [](Vec v) { return v * sigmoid<T>(v); });
}
template <class T>
void silu_backward(const T* dy, const T* x, T* dx, std::int64_t n) {
  map2(dy, x, dx, n, [](Vec d, Vec v) {
    const Vec s = sigmoid<T>(v);
    return d * s * (1.0f + v * (1.0f - s));
  });
}

void adamw(const float* p, const float* g, const float* m, const float* v, float* p_out, float* m_out, float* v_out, std::int64_t n,
           AdamwScalars s) {
  const auto step = [&](std::int64_t i, auto read, auto write) {
    const Vec gradient = read(g + i);
    const Vec first = s.beta1 * read(m + i) + s.rest1 * gradient;
    const Vec second = s.beta2 * read(v + i) + s.rest2 * gradient * gradient;
    write(p_out + i, read(p + i) * s.decay - s.step_size * first / (sqrt(second) * s.correction + s.eps));
    write(m_out + i, first);
    write(v_out + i, second);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) step(i, [](const float* q) { return load(q); }, [](float* q, Vec x) { store(q, x); });
  const std::int64_t rest = n - i;
  if (rest > 0) step(i, [rest](const float* q) { return load_part(q, rest); }, [rest](float* q, Vec x) { store_part(q, x, rest); });
}
