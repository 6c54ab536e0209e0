// SPDX-License-Identifier: Apache-2.0
// Kernels that work row by row: a row stays in the first-level cache for all of its passes.

// Sum over a row of f(c, read), where read(p + c) is a vector; all that is read is of one type. Elements past the end read as `past`, for
// which f must give zero.
template <class F>
inline float row_sum(std::int64_t width, F f, float past = 0) {
  Vec a{}, b{};
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    a += f(c, []<class T>(const T* p) { return load_two<kIsBf16<T>>(p).a; });
    b += f(c, []<class T>(const T* p) { return load_two<kIsBf16<T>>(p).b; });
  }
  for (; c + kLanes <= width; c += kLanes) a += f(c, [](const auto* p) { return load(p); });
  const std::int64_t rest = width - c;
  if (rest > 0) a += f(c, [rest, past](const auto* p) { return load_part(p, rest, past); });
  return sum_of(a + b);
}

// Calls f(c, read, write) over a row.
template <class F>
inline void each(std::int64_t width, F f) {
  std::int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) f(c, [](const auto* p) { return load(p); }, [](auto* p, Vec v) { store(p, v); });
  const std::int64_t rest = width - c;
  if (rest > 0) f(c, [rest](const auto* p) { return load_part(p, rest); }, [rest](auto* p, Vec v) { store_part(p, v, rest); });
}

// Norms take some rows at a time, as many as there are registers for, so that the sums of one need not wait for those of another, and the
// weight and its gradients are read and written less often. Calls f.operator()<n>(r) for rows r .. r + n - 1.
template <class F>
inline void some_rows(std::int64_t rows, F f) {
  constexpr int kAtOnce = kLanes == 16 ? 4 : 2;
  std::int64_t r = 0;
  for (; r + kAtOnce <= rows; r += kAtOnce) f.template operator()<kAtOnce>(r);
  for (; r < rows; ++r) f.template operator()<1>(r);
}

template <int kRows, class T>
inline void layer_norm_rows(const T* x, const float* weight, const float* bias, T* y, float* mean, float* rstd, std::int64_t width,
                            float eps) {
  const float share = 1.0f / static_cast<float>(width);
  float average[kRows], inverse[kRows];
  for (int r = 0; r < kRows; ++r) {
    const T* row = x + r * width;
    average[r] = row_sum(width, [&](std::int64_t c, auto read) { return read(row + c); }) * share;
  }
  for (int r = 0; r < kRows; ++r) {
    const T* row = x + r * width;
    // Centred squares: exact where the mean is large.
    const auto square = [&](std::int64_t c, auto read) {
      const Vec d = read(row + c) - average[r];
      return d * d;
    };
    const float squares = row_sum(width, square, average[r]);
    inverse[r] = 1.0f / __builtin_sqrtf(squares * share + eps);
    mean[r] = average[r];
    rstd[r] = inverse[r];
  }
  each(width, [&](std::int64_t c, auto read, auto write) {
    const Vec w = weight ? read(weight + c) : broadcast(1), b = bias ? read(bias + c) : Vec{};
    for (int r = 0; r < kRows; ++r) write(y + r * width + c, (read(x + r * width + c) - average[r]) * inverse[r] * w + b);
  });
}

template <class T>
void layer_norm(const T* x, const float* weight, const float* bias, T* y, float* mean, float* rstd, NormShape shape, float eps) {
  const std::int64_t width = shape.width;
  some_rows(shape.rows, [&]<int kRows>(std::int64_t r) {
    layer_norm_rows<kRows>(x + r * width, weight, bias, y + r * width, mean + r, rstd + r, width, eps);
  });
}

template <int kRows, class T>
inline void layer_norm_backward_rows(const T* dy, const T* x, const float* mean, const float* rstd, const float* weight, T* dx,
                                     float* dweight, float* dbias, std::int64_t width) {
  float average[kRows], inverse[kRows];  // copies, which nothing that is written can change
  for (int r = 0; r < kRows; ++r) {
    average[r] = mean[r];
    inverse[r] = rstd[r];
  }
  struct Terms {
    Vec d, h, g;
  };
  const auto at = [&](std::int64_t r, std::int64_t c, auto read) -> Terms {
    const Vec d = read(dy + r * width + c);
    return {d, (read(x + r * width + c) - average[r]) * inverse[r], weight ? d * read(weight + c) : d};
  };
  Vec g_sum[kRows]{}, gh_sum[kRows]{};
  each(width, [&](std::int64_t c, auto read, auto write) {
    Vec dh_rows{}, d_rows{};
    for (int r = 0; r < kRows; ++r) {
      const auto [d, h, g] = at(r, c, read);
      g_sum[r] += g;
      gh_sum[r] += g * h;
      dh_rows += d * h;
      d_rows += d;
    }
    if (dweight) write(dweight + c, read(dweight + c) + dh_rows);
    if (dbias) write(dbias + c, read(dbias + c) + d_rows);
  });
  if (!dx) return;
  const float share = 1.0f / static_cast<float>(width);
  float a[kRows], b[kRows];
  for (int r = 0; r < kRows; ++r) {
    a[r] = sum_of(g_sum[r]) * share;
    b[r] = sum_of(gh_sum[r]) * share;
  }
  each(width, [&](std::int64_t c, auto read, auto write) {
    for (int r = 0; r < kRows; ++r) {
      const auto [d, h, g] = at(r, c, read);
      write(dx + r * width + c, inverse[r] * (g - a[r] - h * b[r]));
    }
  });
}

// With h = (x - mean) rstd and g = dy * weight: dx = rstd (g - mean(g) - h mean(g h)); dweight = sum dy h; dbias = sum dy.
template <class T>
void layer_norm_backward(const T* dy, const T* x, const float* mean, const float* rstd, const float* weight, T* dx, float* dweight,
                         float* dbias, NormShape shape, bool accumulate) {
  const std::int64_t width = shape.width;
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  if (!accumulate && dweight) __builtin_memset(dweight, 0, bytes);
  if (!accumulate && dbias) __builtin_memset(dbias, 0, bytes);
  some_rows(shape.rows, [&]<int kRows>(std::int64_t r) {
    const std::int64_t first = r * width;
    layer_norm_backward_rows<kRows>(dy + first, x + first, mean + r, rstd + r, weight, dx ? dx + first : dx, dweight, dbias, width);
  });
}

constexpr float kMinusInfinity = -__builtin_inff();

template <class T>
inline float row_max(const T* x, std::int64_t width) {
  Vec a = broadcast(kMinusInfinity), b = a;
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    const Two v = load_two<kIsBf16<T>>(x + c);
    a = max(a, v.a);
    b = max(b, v.b);
  }
  for (; c + kLanes <= width; c += kLanes) a = max(a, load(x + c));
  if (c < width) a = max(a, load_part(x + c, width - c, kMinusInfinity));
  return max_of(max(a, b));
}

// Sum of exp(x - top).
template <class T>
inline float exp_sum(const T* x, float top, std::int64_t width) {
  return row_sum(width, [&](std::int64_t c, auto read) { return exp(read(x + c) - top); }, kMinusInfinity);
}

template <class T>
inline float row_logsumexp(const T* x, std::int64_t width) {
  const float top = row_max(x, width);
  return top + logf(exp_sum(x, top, width));
}

template <class T>
void softmax(const T* x, T* y, NormShape shape, bool log) {
  for (std::int64_t r = 0; r < shape.rows; ++r, x += shape.width, y += shape.width) {
    const float top = row_max(x, shape.width);
    if (log) {
      const float all = top + logf(exp_sum(x, top, shape.width));
      map1(x, y, shape.width, [all](Vec v) { return v - all; });
    } else {
      const float inverse = 1.0f / exp_sum(x, top, shape.width);
      map1(x, y, shape.width, [&](Vec v) { return exp<T>(v - top) * inverse; });
    }
  }
}

template <class T>
void softmax_backward(const T* dy, const T* y, T* dx, NormShape shape, bool log) {
  for (std::int64_t r = 0; r < shape.rows; ++r, dy += shape.width, y += shape.width, dx += shape.width) {
    if (log) {
      const float sum = row_sum(shape.width, [&](std::int64_t c, auto read) { return read(dy + c); });
      map2(dy, y, dx, shape.width, [sum](Vec d, Vec v) { return d - exp(v) * sum; });
    } else {
      const float dot = row_sum(shape.width, [&](std::int64_t c, auto read) { return read(dy + c) * read(y + c); });
      map2(dy, y, dx, shape.width, [dot](Vec d, Vec v) { return (d - dot) * v; });
    }
  }
}

template <class T>
double cross_entropy(const T* logits, const std::int64_t* targets, float* logsumexp, NormShape shape, std::int64_t ignore) {
  double loss = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width) {
    const float all = row_logsumexp(logits, shape.width);
    if (logsumexp) logsumexp[r] = all;
    if (targets[r] != ignore) loss += static_cast<double>(all - number(logits[targets[r]]));
  }
  return loss;
}

template <class T>
void cross_entropy_backward(const T* logits, const std::int64_t* targets, const float* logsumexp, T* dlogits, NormShape shape,
                            std::int64_t ignore, std::int64_t begin, float factor) {
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width, dlogits += shape.width) {
    if (targets[r] == ignore) {
      clear(dlogits, shape.width);
      continue;
    }
    const float all = logsumexp ? logsumexp[r] : row_logsumexp(logits, shape.width);
    const std::int64_t target = targets[r] - begin;
    const bool here = target >= 0 && target < shape.width;
    const float logit = here ? number(logits[target]) : 0;  // read first: dlogits may lie there
    map1(logits, dlogits, shape.width, [&](Vec v) { return exp<T>(v - all) * factor; });
    if (here) set(dlogits + target, (expf(logit - all) - 1.0f) * factor);
  }
}

void logsumexp(const float* x, float* out, NormShape shape) {
  for (std::int64_t r = 0; r < shape.rows; ++r, x += shape.width) {
    const float top = row_max(x, shape.width);
    // Minus infinity is the highest of a row without numbers: its sum is that, or NaN where the row has one.
    if (top == kMinusInfinity)
      out[r] = row_sum(shape.width, [&](std::int64_t c, auto read) { return read(x + c); });
    else
      out[r] = top + logf(exp_sum(x, top, shape.width));
  }
}
