// SPDX-License-Identifier: Apache-2.0
// Kernels of our own for devices: one text, which a device's compiler reads and, for tests, the host's (tests/standin/emulate.h). A host launches
// them by name (torch/device_kernels.h), with blocks of a multiple of 32 threads, at most 1,024, in one dimension. Tensors are dense. Where
// one thread reads and writes the same element, a result may lie over an operand. All is computed in f32, and no sum depends on which
// thread comes first.
#ifdef __CUDACC__
#include "prelude.cuh"
#endif
#include "../torch/element_type.h"
#include "blocks.cuh"

// Calls f with a number of that type.
template <class F>
__device__ inline void by_type(int type, F f) {
  if (type == kF32)
    f(float{});
  else if (type == kBf16)
    f(bf16{});
  else
    f(f16{});
}

template <int n>
struct Floats {
  float of[n];
};

// n elements, which lie where a pack may.
template <int n, class E>
__device__ inline Floats<n> load(const E* at) {
  const auto pack = *reinterpret_cast<const Pack<E, n>*>(at);
  Floats<n> out;
  for (int i = 0; i < n; ++i) out.of[i] = static_cast<float>(pack.of[i]);
  return out;
}
template <int n, class E>
__device__ inline void store(E* at, Floats<n> x) {
  Pack<E, n> pack;
  for (int i = 0; i < n; ++i) pack.of[i] = static_cast<E>(x.of[i]);
  *reinterpret_cast<Pack<E, n>*>(at) = pack;
}

constexpr int kPack = 4;

// Elements ahead of the first at which a pack may begin, the same for all places, null aside; -1: it is not.
template <class... E>
__device__ inline int64_t head_of(const E*... places) {
  int64_t head = 0;
  bool first = true;
  const auto look = [&]<class T>(const T* place) {
    if (!place) return;
    const int64_t own = static_cast<int64_t>(-(reinterpret_cast<uintptr_t>(place) / sizeof(T)) % kPack);
    head = first || own == head ? own : -1;
    first = false;
  };
  (look(places), ...);
  return head;
}

template <int n>
struct Count {
  static constexpr int value = n;
};

// Calls f(place, Count<n>) for the share of `count` elements that thread `thread` of `threads` has: n of them from `place` on. Packs begin
// behind the first `head` elements; -1: there are none.
template <class F>
__device__ inline void each(int64_t count, int64_t head, int64_t thread, int64_t threads, F f) {
  if (head < 0 || head > count) head = count;
  const int64_t packed = (count - head) / kPack * kPack;
  for (int64_t i = head + thread * kPack; i < head + packed; i += threads * kPack) f(i, Count<kPack>{});
  for (int64_t i = thread; i < count - packed; i += threads) f(i < head ? i : i + packed, Count<1>{});
}

// The same for a row, which the threads of a block share.
template <class F>
__device__ inline void each_of_row(int64_t width, int64_t head, F f) {
  each(width, head, threadIdx.x, blockDim.x, f);
}

// The same for elements that all threads of the grid share.
template <class F>
__device__ inline void each_of_grid(int64_t count, int64_t head, F f) {
  const int64_t block = blockDim.x;
  each(count, head, blockIdx.x * block + threadIdx.x, gridDim.x * block, f);
}

// Notes a value that is wrong, unless one was noted in this step (torch/faults.h). `faults`: code and value, or null.
__device__ inline void note(int64_t* faults, int64_t code, int64_t value) {
  if (faults && exchange_if(faults, 0, code) == 0) faults[1] = value;
}

// --- Cross-entropy ---

// The running maximum of a row's elements, and the sum of exp(element - maximum).
struct Exponentials {
  float top = -INFINITY, sum = 0;

  template <int n>
  __device__ void add(Floats<n> x) {
    float next = top;
    for (int i = 0; i < n; ++i) next = fmaxf(next, x.of[i]);
    if (next == -INFINITY && !isnan(x.of[0])) return;
    sum *= expf(top - next);
    for (int i = 0; i < n; ++i) sum += expf(x.of[i] - next);
    top = next;
  }
  __device__ Exponentials of_block(float* partial) const {
    const float all = over_block(top, partial, [](float a, float b) { return fmaxf(a, b); });
    return {all, block_sum(sum == 0 ? 0.0f : sum * expf(top - all), partial)};
  }
};

// Computes the loss of each row, 0 where its target is `ignored`, and the logsumexp. A target that is no class counts as the nearest.
KERNEL void cross_entropy(const void* logits, const int64_t* targets, float* losses, float* logsumexp, int64_t rows, int64_t width,
                          int64_t ignored, int64_t* faults, int64_t code, int type) {
  SHARED float partial[32];
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      const E* const x = static_cast<const E*>(logits) + row * width;
      Exponentials own;
      each_of_row(width, head_of(x), [&](int64_t c, auto n) { own.add(load<n.value>(x + c)); });
      const Exponentials all = own.of_block(partial);
      if (threadIdx.x != 0) continue;
      logsumexp[row] = all.top + logf(all.sum);
      int64_t target = targets[row];
      losses[row] = 0;
      if (target == ignored) continue;
      if (target < 0 || target >= width) {
        note(faults, code, target);
        target = target < 0 ? 0 : width - 1;
      }
      losses[row] = logf(all.sum) + (all.top - static_cast<float>(x[target]));
    }
  });
}

// The sum of n numbers, by one block.
KERNEL void sum(const float* x, int64_t n, float* out) {
  SHARED double partial[32];
  double own = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) own += static_cast<double>(x[i]);
  own = block_sum(own, partial);
  if (threadIdx.x == 0) *out = static_cast<float>(own);
}

// dlogits = (exp(logits - logsumexp) - onehot(target - begin)) dloss; zeros where the target is `ignored`. It may lie over the logits.
KERNEL void cross_entropy_backward(const float* dloss, const void* logits, const int64_t* targets, const float* logsumexp, void* out,
                                   int64_t rows, int64_t width, int64_t ignored, int64_t begin, int type) {
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      const E* const x = static_cast<const E*>(logits) + row * width;
      E* const y = static_cast<E*>(out) + row * width;
      const bool kept = targets[row] != ignored;
      const int64_t target = targets[row] - begin;
      const float all = logsumexp[row], factor = *dloss;
      each_of_row(width, head_of(x, y), [&](int64_t c, auto n) {
        Floats<n.value> v = load<n.value>(x + c);
        for (int i = 0; i < n.value; ++i) v.of[i] = kept ? (expf(v.of[i] - all) - (c + i == target ? 1.0f : 0.0f)) * factor : 0.0f;
        store(y + c, v);
      });
    }
  });
}

// --- Norms: a layer norm has a mean, an RMS norm none; what is not there is null ---

// Calls f with numbers of the data's type and of the weight's, which may be f32.
template <class F>
__device__ inline void by_types(int type, int weight_type, F f) {
  if (type == kF32)
    f(float{}, float{});
  else if (type == kBf16 && weight_type == kF32)
    f(bf16{}, float{});
  else if (type == kBf16)
    f(bf16{}, bf16{});
}

// y = (x - mean) rstd weight + bias.
KERNEL void row_norm(const void* from, const void* weight, const void* bias, void* to, float* mean, float* rstd, int64_t rows,
                     int64_t width, float eps, int type, int weight_type) {
  SHARED float partial[32];
  by_types(type, weight_type, [&](auto zero, auto weight_zero) {
    using E = decltype(zero);
    using W = decltype(weight_zero);
    const W *const w = static_cast<const W*>(weight), *const b = static_cast<const W*>(bias);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      const E* const x = static_cast<const E*>(from) + row * width;
      E* const y = static_cast<E*>(to) + row * width;
      const int64_t head = head_of(x, y, w, b);
      const float share = 1.0f / static_cast<float>(width);
      float own = 0, average = 0;
      if (mean) {
        each_of_row(width, head, [&](int64_t c, auto n) {
          for (const float v : load<n.value>(x + c).of) own += v;
        });
        average = block_sum(own, partial) * share;
        own = 0;
      }
      each_of_row(width, head, [&](int64_t c, auto n) {
        for (const float v : load<n.value>(x + c).of) own += (v - average) * (v - average);
      });
      const float inverse = 1.0f / sqrtf(block_sum(own, partial) * share + eps);
      each_of_row(width, head, [&](int64_t c, auto n) {
        Floats<n.value> v = load<n.value>(x + c);
        for (float& one : v.of) one = (one - average) * inverse;
        if (w) {
          const Floats<n.value> by = load<n.value>(w + c);
          for (int i = 0; i < n.value; ++i) v.of[i] *= by.of[i];
        }
        if (b) {
          const Floats<n.value> more = load<n.value>(b + c);
          for (int i = 0; i < n.value; ++i) v.of[i] += more.of[i];
        }
        store(y + c, v);
      });
      if (threadIdx.x != 0) continue;
      if (mean) mean[row] = average;
      rstd[row] = inverse;
    }
  });
}

// The terms of a norm's backward for some elements: h = (x - mean) rstd, d = dy and g = dy weight.
template <int n>
struct NormTerms {
  Floats<n> h, d, g;
};
template <int n, class E, class W>
__device__ inline NormTerms<n> norm_terms(const E* dy, const E* x, const W* weight, float average, float inverse) {
  NormTerms<n> out;
  out.h = load<n>(x);
  out.d = out.g = load<n>(dy);
  for (float& one : out.h.of) one = (one - average) * inverse;
  if (weight) {
    const Floats<n> by = load<n>(weight);
    for (int i = 0; i < n; ++i) out.g.of[i] *= by.of[i];
  }
  return out;
}

// dx = rstd (g - mean(g) - h mean(g h)), without mean(g) in an RMS norm. It may lie over dy or x.
KERNEL void row_norm_backward(const void* from_dy, const void* from_x, const float* mean, const float* rstd, const void* weight, void* to,
                              int64_t rows, int64_t width, int type, int weight_type) {
  SHARED float partial[32];
  by_types(type, weight_type, [&](auto zero, auto weight_zero) {
    using E = decltype(zero);
    using W = decltype(weight_zero);
    const W* const w = static_cast<const W*>(weight);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
      const E *const dy = static_cast<const E*>(from_dy) + row * width, *const x = static_cast<const E*>(from_x) + row * width;
      E* const dx = static_cast<E*>(to) + row * width;
      const int64_t head = head_of(dy, x, dx, w);
      const float average = mean ? mean[row] : 0.0f, inverse = rstd[row], share = 1.0f / static_cast<float>(width);
      float g_sum = 0, gh_sum = 0;
      const auto terms = [&](int64_t c, auto n) { return norm_terms<n.value>(dy + c, x + c, w ? w + c : nullptr, average, inverse); };
      each_of_row(width, head, [&](int64_t c, auto n) {
        const NormTerms<n.value> t = terms(c, n);
        for (int i = 0; i < n.value; ++i) g_sum += t.g.of[i], gh_sum += t.g.of[i] * t.h.of[i];
      });
      const float a = mean ? block_sum(g_sum, partial) * share : 0.0f, b = block_sum(gh_sum, partial) * share;
      each_of_row(width, head, [&](int64_t c, auto n) {
        NormTerms<n.value> t = terms(c, n);
        for (int i = 0; i < n.value; ++i) t.g.of[i] = inverse * (t.g.of[i] - a - t.h.of[i] * b);
        store(dx + c, t.g);
      });
    }
  });
}

// Sums over ranges of rows, one of gridDim.y each: of dy h into dweights[range, width], and of dy into dbiases likewise, unless that is
// null. A block has 32 columns; its warps take rows in turn.
KERNEL void row_norm_backward_columns(const void* from_dy, const void* from_x, const float* mean, const float* rstd, float* dweights,
                                      float* dbiases, int64_t rows, int64_t width, int type) {
  SHARED float sums[2][32][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int64_t range = (rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * range, end = begin + range < rows ? begin + range : rows;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float dw = 0, db = 0;
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    if (column >= width) return;
    for (int64_t row = begin + warp; row < end; row += warps) {
      const float d = static_cast<float>(static_cast<const E*>(from_dy)[row * width + column]);
      const float x = static_cast<float>(static_cast<const E*>(from_x)[row * width + column]);
      dw += d * (x - (mean ? mean[row] : 0.0f)) * rstd[row];
      db += d;
    }
  });
  sums[0][warp][lane] = dw;
  sums[1][warp][lane] = db;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (unsigned w = 1; w < warps; ++w) dw += sums[0][w][lane], db += sums[1][w][lane];
  dweights[blockIdx.y * width + column] = dw;
  if (dbiases) dbiases[blockIdx.y * width + column] = db;
}

// The sums of the columns of parts[count, width], or what was there and these.
KERNEL void sum_columns(const float* parts, int64_t count, int64_t width, void* out, bool adds, int type) {
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    E* const to = static_cast<E*>(out);
    each_of_grid(width, -1, [&](int64_t c, auto) {
      float own = 0;
      for (int64_t part = 0; part < count; ++part) own += parts[part * width + c];
      to[c] = static_cast<E>(adds ? static_cast<float>(to[c]) + own : own);
    });
  });
}

// --- AdamW ---

// The factors of a step's update: 1 - rate decay, rate / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
struct AdamwFactors {
  float decayed, size, inverse_root;
};

// base^n, in f64, as 1 - beta^step loses digits where beta is next to one.
__device__ inline double power(double base, int64_t n) {
  double out = 1;
  for (; n > 0; n >>= 1, base *= base)
    if (n & 1) out *= base;
  return out;
}

// One tensor's update, each of whose results may lie over its operand: adamw, with what is not there null. Ahead of time the gradient is
// multiplied by `factor`, and the old values are kept. One that validates has `assumed` and the present values, which stay where the factor
// is the assumed one. That all is one kernel gives all the same bits.
KERNEL void adamw(const float* p, const float* g, const float* m, const float* v, const float* rate, const int64_t* step,
                  const float* factor, const float* assumed, const float* p_now, const float* m_now, const float* v_now, float* p_out,
                  float* m_out, float* v_out, float* p_old, float* m_old, float* v_old, int64_t count, double beta1, double beta2,
                  double eps, double weight_decay) {
  SHARED AdamwFactors factors;
  if (threadIdx.x == 0) {
    const double r = static_cast<double>(*rate);
    factors.decayed = static_cast<float>(1 - r * weight_decay);
    factors.size = static_cast<float>(r / (1 - power(beta1, *step)));
    factors.inverse_root = static_cast<float>(1 / sqrt(1 - power(beta2, *step)));
  }
  __syncthreads();
  const AdamwFactors by = factors;
  const float b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2), c1 = static_cast<float>(1 - beta1),
              c2 = static_cast<float>(1 - beta2), e = static_cast<float>(eps), scale = factor ? *factor : 1.0f;
  const bool stays = assumed && *assumed == scale;
  const int64_t head = head_of(p, g, m, v, p_now, m_now, v_now, p_out, m_out, v_out, p_old, m_old, v_old);
  each_of_grid(count, head, [&](int64_t i, auto n) {
    Floats<n.value> x = load<n.value>((stays ? p_now : p) + i), first = load<n.value>((stays ? m_now : m) + i),
                    second = load<n.value>((stays ? v_now : v) + i);
    if (p_old) store(p_old + i, x), store(m_old + i, first), store(v_old + i, second);
    const Floats<n.value> gradient = load<n.value>(g + i);
    for (int k = 0; k < n.value && !stays; ++k) {
      const float d = gradient.of[k] * scale;
      first.of[k] = b1 * first.of[k] + c1 * d;
      second.of[k] = b2 * second.of[k] + c2 * d * d;
      x.of[k] = x.of[k] * by.decayed - by.size * first.of[k] / (sqrtf(second.of[k]) * by.inverse_root + e);
    }
    store(p_out + i, x);
    store(m_out + i, first);
    store(v_out + i, second);
  });
}

// --- Random numbers: base/philox.h ---

struct RandomBlock {
  uint32_t of[4];

  // An index that is not known as it is compiled would put the block to memory.
  __device__ uint32_t word(int64_t i) const { return i < 2 ? (i == 0 ? of[0] : of[1]) : (i == 2 ? of[2] : of[3]); }
};
__device__ inline RandomBlock philox(uint64_t low, uint64_t high, uint64_t key) {
  RandomBlock c{
      {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.of[0], p1 = uint64_t{0xCD9E8D57u} * c.of[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.of[1] ^ k0, static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c.of[3] ^ k1,
          static_cast<uint32_t>(p0)}};
  }
  return c;
}

// By one thread.
KERNEL void random_key(const int64_t* seed, const int64_t* step, int64_t op, int64_t* out) {
  const RandomBlock c = philox(static_cast<uint64_t>(*step), static_cast<uint64_t>(op), static_cast<uint64_t>(*seed));
  *out = static_cast<int64_t>(uint64_t{c.of[0]} | uint64_t{c.of[1]} << 32);
}

// Element e of a row is at places[e] of the whole row, or at e where that is null, from positions[row] * whole on; see dropout_words in
// torch/kernels_random.cpp.
KERNEL void dropout(const void* from, void* to, const int64_t* key, const int64_t* row_numbers, const int64_t* positions,
                    const int64_t* places, int64_t rows, int64_t width, int64_t whole, uint32_t threshold, float scale, int type) {
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    const E* const x = static_cast<const E*>(from);
    E* const y = static_cast<E*>(to);
    const bool whole_rows = width % kPack == 0 && head_of(x, y) == 0;  // a pack has elements of one row
    each_of_grid(rows * width, whole_rows ? 0 : -1, [&](int64_t i, auto n) {
      const int64_t row = i / width;
      const int64_t begin = positions ? positions[row] * whole : 0;
      Floats<n.value> v = load<n.value>(x + i);
      RandomBlock words{};
      int64_t drawn = -1;  // which block `words` is
      for (int k = 0; k < n.value; ++k) {
        const int64_t e = i - row * width + k, place = begin + (places ? places[e] : e);
        if (place / 4 != drawn) {
          drawn = place / 4;
          words = philox(static_cast<uint64_t>(drawn), static_cast<uint64_t>(row_numbers[row]), static_cast<uint64_t>(*key));
        }
        v.of[k] = words.word(place % 4) >= threshold ? v.of[k] * scale : 0.0f;
      }
      store(y + i, v);
    });
  });
}

// --- Embeddings: of a table of `whole` rows those from `begin` on, `rows` of them, are here ---

// The rows of indices; zeros where a row is elsewhere. An index that no table has counts as the nearest.
KERNEL void embedding(const void* table, const int64_t* indices, void* out, int64_t count, int64_t width, int64_t begin, int64_t rows,
                      int64_t whole, int64_t* faults, int64_t code, int type) {
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
      int64_t index = indices[i];
      if (index < 0 || index >= whole) {
        if (threadIdx.x == 0) note(faults, code, index);
        index = index < 0 ? 0 : whole - 1;
      }
      const int64_t row = index - begin;
      const bool here = row >= 0 && row < rows;
      const E* const from = static_cast<const E*>(table) + (here ? row : 0) * width;
      E* const to = static_cast<E*>(out) + i * width;
      each_of_row(width, head_of(from, to), [&](int64_t c, auto n) { store(to + c, here ? load<n.value>(from + c) : Floats<n.value>{}); });
    }
  });
}

// The row of each index gets the sum of the rows of dy that it was looked up for, in their order: order[i] / bag is the row of sorted[i]. A
// block finds an index where it is first among the sorted ones. The other rows stay. Indices that no table has are passed by.
KERNEL void embedding_backward(const void* from_dy, const int64_t* sorted, const int64_t* order, void* out, int64_t count, int64_t width,
                               int64_t bag, int64_t begin, int64_t rows, int64_t whole, int64_t* faults, int64_t code, bool adds,
                               int type) {
  by_type(type, [&](auto zero) {
    using E = decltype(zero);
    const E* const dy = static_cast<const E*>(from_dy);
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
      const int64_t index = sorted[i], row = index - begin;
      if (i > 0 && sorted[i - 1] == index) continue;
      if ((index < 0 || index >= whole) && threadIdx.x == 0) note(faults, code, index);
      if (index < 0 || index >= whole || row < 0 || row >= rows) continue;
      int64_t end = i + 1;
      while (end < count && sorted[end] == index) ++end;
      E* const to = static_cast<E*>(out) + row * width;
      const int64_t head = width % kPack == 0 ? head_of(dy, to) : -1;  // of all rows of dy
      each_of_row(width, head, [&](int64_t c, auto n) {
        Floats<n.value> own{};
        if (adds) own = load<n.value>(to + c);
        for (int64_t k = i; k < end; ++k) {
          const Floats<n.value> more = load<n.value>(dy + (bag == 1 ? order[k] : order[k] / bag) * width + c);
          for (int e = 0; e < n.value; ++e) own.of[e] += more.of[e];
        }
        store(to + c, own);
      });
    }
  });
}
