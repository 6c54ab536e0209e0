// SPDX-License-Identifier: Apache-2.0
// Attention head by head, over blocks of queries and of keys (FlashAttention-2, Dao 2023): a block of scores stays near the first-level
// cache and is never written out. Scores have keys as rows and queries as columns. So the highest ones and the sums are taken down the
// rows, without sums over lanes; what is made of the scores is the packed panel that products over keys read; and a causal mask leaves out
// keys by vectors of queries. Products whose rows would be queries are computed transposed, and transposed when they are written.

constexpr std::int64_t kBlockKeys = 128;
constexpr float kLowest = -3.4e38f;  // below all scores, and finite: the difference of two is a number

// The positions of one head.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;
  T* at(std::int64_t position) const { return data + position * stride; }
  HeadRows from(std::int64_t position) const { return {at(position), stride}; }
};
template <class T>
inline HeadRows<T> head_of(HeadsView<T> view, std::int64_t batch, std::int64_t head) {
  return {view.data + batch * view.strides.batch + head * view.strides.head, view.strides.position};
}
template <class T>
inline MatrixView<T> rows(HeadRows<const T> x) {
  return {x.data, x.stride, 1};
}
template <class T>
inline MatrixView<T> transposed(HeadRows<const T> x) {
  return {x.data, 1, x.stride};
}

// A block's scores, [kBlockKeys, kColumns]. What is made of them in T lies in their place, at the beginnings of their rows.
struct Scores {
  alignas(64) float data[kBlockKeys * kColumns];

  float* row(std::int64_t key) { return data + key * kColumns; }
  template <class T>
  HeadRows<T> in() {
    return {reinterpret_cast<T*>(data), kColumns * static_cast<std::int64_t>(sizeof(float) / sizeof(T))};
  }
};

inline std::int64_t whole_vectors(std::int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// Up to kColumns queries that are computed together. The bias, where there is one, is that of the block's first query and key; one query
// further it begins one element before. Each query sees the first ones of the keys.
struct QueryBlock {
  std::int64_t queries, head;
  float scale;
  const float* bias;
  std::int64_t keys, ahead;         // the most that a query sees; the most that it sees less its own place in the block
  Mask seen[kMaxVectors];           // by each query, and none by the lanes behind the last one
  std::int64_t every[kMaxVectors];  // the keys that each lane of a vector sees
  std::int64_t some[kMaxVectors];   // the most keys that a query of a vector sees, or of one before it

  std::int64_t vectors() const { return whole_vectors(queries) / kLanes; }
};

// `visible(i)`: the keys that query i of the block sees, at least 1.
template <class Visible>
QueryBlock query_block(std::int64_t queries, std::int64_t head, float scale, const float* bias, Visible visible) {
  QueryBlock b{queries, head, scale, bias, 0, 1 - queries, {}, {}, {}};
  for (std::int64_t v = 0; v < b.vectors(); ++v) {
    const std::int64_t begin = v * kLanes, end = least(queries, begin + kLanes);
    b.every[v] = end - begin < kLanes ? 0 : visible(begin);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t keys = visible(i);
      b.seen[v][i - begin] = static_cast<std::int32_t>(keys);
      b.every[v] = least(b.every[v], keys);
      b.keys = most(b.keys, keys);
      b.ahead = most(b.ahead, keys - i);
    }
    b.some[v] = b.keys;
  }
  return b;
}

// Up to kBlockKeys of the keys that a block of queries sees, from `key` on. Vector v of the queries takes part in the first rows[v] of
// them, which are no fewer than those of the vector before it.
struct KeyBlock {
  std::int64_t key, keys;
  std::int64_t rows[kMaxVectors];
};
inline KeyBlock key_block(const QueryBlock& b, std::int64_t key) {
  KeyBlock k{key, least(b.keys - key, kBlockKeys), {}};
  for (std::int64_t v = 0; v < b.vectors(); ++v) {
    k.rows[v] = least(whole_vectors(most(b.some[v] - key, 0)), k.keys);  // few, large tiles, and no part of a word
  }
  return k;
}

// Calls f(begin, keys, vector) for each run of rows, which vector `vector` and those behind it take part in.
template <class F>
inline void for_rows(const QueryBlock& b, const KeyBlock& k, F f) {
  for (std::int64_t v = 0, begin = 0; v < b.vectors(); begin = k.rows[v++])
    if (k.rows[v] > begin) f(begin, k.rows[v] - begin, v);
}

// c [m, columns] = a [m, depth] times a packed panel, or plus that.
template <class T>
inline void multiply(std::int64_t m, std::int64_t columns, std::int64_t depth, MatrixView<T> a, float* panel, float* c, std::int64_t ldc,
                     Start start) {
  TileArguments<T> t{{{}, depth, columns}, {}, a, panel, c, ldc, nullptr, start, 0, nullptr, 0};
  rows_of_panel(m, t, false);
}

// scores = x [keys, head] times a panel of the block's queries.
template <class T>
void score(const QueryBlock& b, const KeyBlock& k, HeadRows<const T> x, float* panel, Scores& scores) {
  for_rows(b, k, [&](std::int64_t begin, std::int64_t keys, std::int64_t v) {
    multiply(keys, b.queries - v * kLanes, b.head, rows(x.from(k.key + begin)), panel + v * kLanes, scores.row(begin) + v * kLanes,
             kColumns, Start::zero);
  });
}

// sums [head, kColumns] += x^T times what lies in the scores' place, x [keys, head]; stored for the first keys.
template <class T>
void add_over_keys(const QueryBlock& b, const KeyBlock& k, HeadRows<const T> x, Scores& scores, float* sums) {
  constexpr bool kPacks = kPerWord<T> > 1, kWidens = sizeof(T) < sizeof(float);
  alignas(64) float packed[kPacks ? kBlockKeys / kPerWord<T> * kMaxAttentionHead : 1], words[kWidens ? kBlockKeys * kColumns : 1];
  for_rows(b, k, [&](std::int64_t begin, std::int64_t keys, std::int64_t v) {
    float* panel = scores.row(begin) + v * kLanes;
    const std::int64_t columns = b.queries - v * kLanes;
    if constexpr (kWidens) {
      panel = words;
      pack_panel(rows<T>({scores.in<const T>().at(begin) + v * kLanes, scores.in<const T>().stride}), keys, columns, panel, kColumns);
    }
    const MatrixView<T> a = readable(transposed(x.from(k.key + begin)), b.head, keys, packed, whole_vectors(b.head));
    multiply(b.head, columns, keys, a, panel, sums + v * kLanes, kColumns, k.key + begin == 0 ? Start::zero : Start::add);
  });
}

// to [keys, head] += what lies in the scores' place times the panels of the block's queries.
template <class T>
void add_over_queries(const QueryBlock& b, const KeyBlock& k, Scores& scores, float* panels, HeadRows<float> to) {
  const HeadRows<const T> a = scores.in<const T>();
  for (std::int64_t j = 0; j < b.head; j += kColumns, panels += kColumns * kColumns)
    for_rows(b, k, [&](std::int64_t begin, std::int64_t keys, std::int64_t v) {
      multiply(keys, least(b.head - j, kColumns), b.queries - v * kLanes, rows<T>({a.at(begin) + v * kLanes, a.stride}),
               panels + v * kLanes / kPerWord<T> * kColumns, to.at(k.key + begin) + j, to.stride, Start::add);
    });
}

// The block's queries, or what else has their places, as columns for `score` and as rows for `add_over_queries`.
template <class T>
void pack_columns(const QueryBlock& b, HeadRows<const T> x, float* panel) {
  pack_panel(transposed(x), b.head, b.queries, panel, kColumns);
}
template <class T>
void pack_rows(const QueryBlock& b, HeadRows<const T> x, float* panels) {
  for (std::int64_t j = 0; j < b.head; j += kColumns, panels += kColumns * kColumns)
    pack_panel<T>({x.data + j, x.stride, 1}, b.queries, least(b.head - j, kColumns), panels, kColumns);
}

// out [queries, head] = the transposed of sums [head, kColumns], each query's times its factor.
template <class T>
void write_transposed(const QueryBlock& b, const float* sums, const Vec* factor, HeadRows<T> out) {
  for (std::int64_t v = 0; v < b.vectors(); ++v)
    for (std::int64_t d = 0; d < b.head; d += kLanes) {
      const std::int64_t width = least(b.head - d, kLanes), queries = least(b.queries - v * kLanes, kLanes);
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = i < width ? load(sums + (d + i) * kColumns + v * kLanes) * factor[v] : Vec{};
      transpose_block(block);
      for (int i = 0; i < queries; ++i) {
        T* const to = out.at(v * kLanes + i) + d;
        width == kLanes ? store(to, block[i]) : store_part(to, block[i], width);
      }
    }
}

// Biases of a block of scores by distance, the farthest key's first: so the ones of a row are dense. They are zero where no query sees a
// key.
struct Biases {
  float data[kBlockKeys + kColumns];

  float* row(std::int64_t key) { return data + kBlockKeys - 1 - key; }
  // Calls f(place, distance) for each that there is.
  template <class F>
  void each(const QueryBlock& b, const KeyBlock& k, F f) {
    const std::int64_t end = least(b.ahead - k.key, k.keys);
    for (std::int64_t i = 1 - b.queries; i < end; ++i) f(row(i), k.key + i);
  }
};

// With a bias: scores to scale * score + bias. Returns the scale that is left to apply.
inline float shift(const QueryBlock& b, const KeyBlock& k, Scores& scores) {
  if (!b.bias) return b.scale;
  Biases biases{};
  biases.each(b, k, [&](float* place, std::int64_t i) { *place = b.bias[i]; });
  for_rows(b, k, [&](std::int64_t begin, std::int64_t keys, std::int64_t v) {
    for (std::int64_t key = begin; key < begin + keys; ++key)
      map2(scores.row(key) + v * kLanes, biases.row(key) + v * kLanes, scores.row(key) + v * kLanes, (b.vectors() - v) * kLanes,
           [&](Vec score, Vec bias) { return score * b.scale + bias; });
  });
  return 1;
}

// Calls f(key, sees) for the rows in which vector v takes part, where `sees` keeps a value for queries that see the key.
template <class F>
inline void down(const QueryBlock& b, const KeyBlock& k, std::int64_t v, F f) {
  const std::int64_t all = least(most(b.every[v] - k.key, 0), k.rows[v]);
  std::int64_t key = 0;
  for (; key < all; ++key) f(key, [](Vec x, Vec) { return x; });
  for (; key < k.rows[v]; ++key) f(key, [&](Vec x, Vec other) { return b.seen[v] > static_cast<std::int32_t>(k.key + key) ? x : other; });
}

// A vector of queries over the keys until now: the highest of the scores, which are scaled, and the sum of exp(score - top).
struct Softmax {
  Vec top, sum;
};

// Scores to weights, exp(scale * score - top), in T. Returns the factor for sums with the former top.
template <class T>
Vec weigh(const QueryBlock& b, const KeyBlock& k, std::int64_t v, float scale, Scores& scores, Softmax& s) {
  float* const column = scores.data + v * kLanes;
  const HeadRows<T> weights = scores.in<T>();
  Vec best = broadcast(kLowest);
  down(b, k, v, [&](std::int64_t key, auto sees) { best = max(best, sees(load(column + key * kColumns) * scale, broadcast(kLowest))); });
  const Vec top = max(best, s.top), factor = exp(s.top - top);
  Vec sum{};
  down(b, k, v, [&](std::int64_t key, auto sees) {
    const Vec weight = sees(exp(load(column + key * kColumns) * scale - top), Vec{});
    store(weights.at(key) + v * kLanes, weight);
    sum += weight;
  });
  s = {top, s.sum * factor + sum};
  return factor;
}

// All operands begin with the block's first query or key.
template <class T>
void attend(const QueryBlock& b, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out, float* logsumexp) {
  alignas(64) float queries[kMaxAttentionHead * kColumns], sums[kMaxAttentionHead * kColumns];
  Scores scores;
  Softmax softmax[kMaxVectors];
  for (Softmax& s : softmax) s = {broadcast(kLowest), Vec{}};
  pack_columns(b, q, queries);
  for (std::int64_t key = 0; key < b.keys; key += kBlockKeys) {
    const KeyBlock keys = key_block(b, key);
    score(b, keys, k, queries, scores);
    const float scale = shift(b, keys, scores);
    for (std::int64_t i = 0; i < b.vectors(); ++i) {
      const Vec factor = weigh<T>(b, keys, i, scale, scores, softmax[i]);
      if (key == 0) continue;
      for (std::int64_t d = 0; d < b.head; ++d) store(sums + d * kColumns + i * kLanes, load(sums + d * kColumns + i * kLanes) * factor);
    }
    add_over_keys(b, keys, v, scores, sums);
  }
  Vec inverse[kMaxVectors];
  for (std::int64_t i = 0; i < b.vectors(); ++i) {
    const Vec all = softmax[i].top + log(softmax[i].sum);
    const std::int64_t rest = b.queries - i * kLanes;
    rest < kLanes ? store_part(logsumexp + i * kLanes, all, rest) : store(logsumexp + i * kLanes, all);
    inverse[i] = 1.0f / softmax[i].sum;
  }
  write_transposed(b, sums, inverse, out);
}

// Calls f(block, first) for blocks of the queries of a head, from `first` on.
template <class F>
void for_blocks(const AttentionShape& s, F f) {
  for (std::int64_t first = 0; first < s.queries; first += kColumns)
    f(query_block(least(s.queries - first, kColumns), s.head, s.scale, nullptr,
                  [&](std::int64_t i) { return s.causal ? least(first + i + 1, s.keys) : s.keys; }),
      first);
}

// Asks the caches for all heads of a sequence, position by position: in a step they are far away, and head by head they would come a piece
// of a row at a time. What the second-level cache could not keep is not asked for.
template <class T, class... Views>
[[gnu::always_inline]] inline void fetch(const AttentionShape& s, std::int64_t batch, Views... views) {
  const std::int64_t positions = least(s.queries, s.keys);
  constexpr std::int64_t kLine = 64 / sizeof(T), kMost = (3 << 18) / sizeof(T);
  if (static_cast<std::int64_t>(sizeof...(views)) * positions * s.heads * s.head > kMost) return;
  for (std::int64_t p = 0; p < positions; ++p)
    for (const HeadsView<const T>& x : {views...})
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t e = 0; e < s.head; e += kLine) __builtin_prefetch(head_of(x, batch, h).at(p) + e);
}

template <class T>
void attention(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> out, float* logsumexp, AttentionShape s) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries)
      for_blocks(s, [&](const QueryBlock& block, std::int64_t first) {
        attend(block, head_of(q, b, h).from(first), head_of(k, b, h), head_of(v, b, h), head_of(out, b, h).from(first), logsumexp + first);
      });
}

template <class T>
struct AttentionGradients {
  HeadRows<T> dq;
  HeadRows<float> dk, dv;
  float* dbias;  // as the block's bias; null: there is none
};

// Scores become the probabilities, and dP becomes dS, both in T.
template <class T>
void score_backward(const QueryBlock& b, const KeyBlock& k, float scale, const float* logsumexp, const float* delta, Scores& scores,
                    Scores& dscores) {
  const HeadRows<T> p = scores.in<T>(), ds = dscores.in<T>();
  for (std::int64_t v = 0; v < b.vectors(); ++v) {
    const Vec all = load(logsumexp + v * kLanes), lost = load(delta + v * kLanes);
    down(b, k, v, [&](std::int64_t key, auto sees) {
      const Vec weight = sees(exp(load(scores.row(key) + v * kLanes) * scale - all), Vec{});
      store(ds.at(key) + v * kLanes, sees(weight * (load(dscores.row(key) + v * kLanes) - lost) * scale, Vec{}));
      store(p.at(key) + v * kLanes, weight);
    });
  }
}

// Adds dS to the gradient of the bias, and scales it. Rows that follow on each other add to the same elements, so every kLanes-th row is
// added in turn: no sum is read while it is on its way to the cache.
inline void bias_backward(const QueryBlock& b, const KeyBlock& k, float* dbias, Scores& dscores) {
  Biases sums{};
  for (std::int64_t first = 0; first < kLanes; ++first)
    for_rows(b, k, [&](std::int64_t begin, std::int64_t keys, std::int64_t v) {
      for (std::int64_t key = begin + first; key < begin + keys; key += kLanes) {
        float *const to = sums.row(key) + v * kLanes, *const row = dscores.row(key) + v * kLanes;
        map2(to, row, to, b.queries - v * kLanes, [](Vec sum, Vec d) { return sum + d; });
        scale(row, b.scale, row, b.queries - v * kLanes);
      }
    });
  sums.each(b, k, [&](const float* sum, std::int64_t i) { dbias[i] += *sum; });
}

// Adds to dbias and to the block's keys' dk and dv.
template <class T>
void attend_backward(const QueryBlock& b, HeadRows<const T> dout, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                     HeadRows<const T> out, const float* logsumexp, const AttentionGradients<T>& to) {
  constexpr std::int64_t kPanel = kMaxAttentionHead * kColumns;
  alignas(64) float queries[kPanel], query_rows[kPanel], douts[kPanel], dout_rows[kPanel], sums[kPanel];
  Scores scores, dscores;
  float all[kColumns] = {}, delta[kColumns] = {};
  for (std::int64_t i = 0; i < b.queries; ++i) {
    all[i] = logsumexp[i];
    delta[i] = row_sum(b.head, [&](std::int64_t c, auto read) { return read(dout.at(i) + c) * read(out.at(i) + c); });
  }
  pack_columns(b, q, queries);
  pack_columns(b, dout, douts);
  pack_rows(b, q, query_rows);
  pack_rows(b, dout, dout_rows);
  for (std::int64_t key = 0; key < b.keys; key += kBlockKeys) {
    const KeyBlock keys = key_block(b, key);
    score(b, keys, k, queries, scores);
    score(b, keys, v, douts, dscores);
    score_backward<T>(b, keys, shift(b, keys, scores), all, delta, scores, dscores);
    if constexpr (sizeof(T) == sizeof(float))
      if (to.dbias) bias_backward(b, keys, to.dbias, dscores);
    add_over_queries<T>(b, keys, scores, dout_rows, to.dv);
    add_over_queries<T>(b, keys, dscores, query_rows, to.dk);
    add_over_keys(b, keys, k, dscores, sums);
  }
  Vec one[kMaxVectors];
  for (Vec& factor : one) factor = broadcast(1);
  write_transposed(b, sums, one, to.dq);
}

// Where the gradients of a head's keys or values are summed: there, or in `sums`, from where they are rounded.
inline HeadRows<float> summed(HeadRows<float> there, float*, std::int64_t) {
  return there;
}
inline HeadRows<float> summed(HeadRows<Bf16>, float* sums, std::int64_t head) {
  return {sums, head};
}
inline void round_sums(HeadRows<float>, HeadRows<float>, const AttentionShape&) {}
inline void round_sums(HeadRows<float> sums, HeadRows<Bf16> to, const AttentionShape& s) {
  for (std::int64_t key = 0; key < s.keys; ++key) scale(sums.at(key), 1, to.at(key), s.head);
}
inline void clear_rows(HeadRows<float> x, std::int64_t rows, std::int64_t head) {
  for (std::int64_t i = 0; i < rows; ++i) clear(x.at(i), head);
}

template <class T>
void attention_backward(HeadsView<const T> dout, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<const T> out,
                        const float* logsumexp, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv, AttentionShape s, float* sums) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    fetch<T>(s, b, q, k, v, dout, out);
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries) {
      const HeadRows<T> dk_rows = head_of(dk, b, h), dv_rows = head_of(dv, b, h);
      const HeadRows<float> dk_sums = summed(dk_rows, sums, s.head),
                            dv_sums = summed(dv_rows, sums ? sums + s.keys * s.head : sums, s.head);
      clear_rows(dk_sums, s.keys, s.head);
      clear_rows(dv_sums, s.keys, s.head);
      for_blocks(s, [&](const QueryBlock& block, std::int64_t first) {
        attend_backward(block, head_of(dout, b, h).from(first), head_of(q, b, h).from(first), head_of(k, b, h), head_of(v, b, h),
                        head_of(out, b, h).from(first), logsumexp + first,
                        AttentionGradients<T>{head_of(dq, b, h).from(first), dk_sums, dv_sums, nullptr});
      });
      round_sums(dk_sums, dk_rows, s);
      round_sums(dv_sums, dv_rows, s);
    }
  }
}

// Queries that follow on each other and see keys from one on, or none at all.
struct QueryRun {
  std::int64_t begin, end, first;
  bool sees;
};

// The run that begins with query `begin` of a row, of at most a block's queries.
inline QueryRun run_at(const std::int64_t* ranges, std::int64_t begin, std::int64_t queries) {
  const auto sees = [&](std::int64_t i) { return ranges[2 * i + 1] > ranges[2 * i]; };
  QueryRun run{begin, begin + 1, ranges[2 * begin], sees(begin)};
  for (; run.end < least(queries, begin + kColumns); ++run.end)
    if (sees(run.end) != run.sees || (run.sees && ranges[2 * run.end] != run.first)) break;
  return run;
}

// Calls f(batch, head, run, block) for the runs of queries that see keys, and none(batch, head, query) for each other query.
template <class F, class None>
void for_runs(const RangesShape& s, F f, None none) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t* ranges = s.ranges + 2 * b * s.queries;
      for (std::int64_t begin = 0; begin < s.queries;) {
        const QueryRun run = run_at(ranges, begin, s.queries);
        begin = run.end;
        if (!run.sees) {
          for (std::int64_t i = run.begin; i < run.end; ++i) none(b, h, i);
          continue;
        }
        const float* bias = s.bias ? s.bias + h * (2 * s.reach - 1) + run.first - run.begin - s.offset + s.reach - 1 : nullptr;
        f(b, h, run, query_block(run.end - run.begin, s.head, s.scale, bias, [&](std::int64_t i) {
            return ranges[2 * (run.begin + i) + 1] - run.first;
          }));
      }
    }
}

void attention_in_ranges(HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v, HeadsView<float> out,
                         float* logsumexp, RangesShape s) {
  const auto sums = [&](std::int64_t b, std::int64_t h) { return logsumexp + (b * s.heads + h) * s.queries; };
  for_runs(
      s,
      [&](std::int64_t b, std::int64_t h, const QueryRun& run, const QueryBlock& block) {
        attend(block, head_of(q, b, h).from(run.begin), head_of(k, b, h).from(run.first), head_of(v, b, h).from(run.first),
               head_of(out, b, h).from(run.begin), sums(b, h) + run.begin);
      },
      [&](std::int64_t b, std::int64_t h, std::int64_t query) {
        clear(head_of(out, b, h).at(query), s.head);
        sums(b, h)[query] = kMinusInfinity;
      });
}

void attention_in_ranges_backward(HeadsView<const float> dout, HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v,
                                  HeadsView<const float> out, const float* logsumexp, HeadsView<float> dq, HeadsView<float> dk,
                                  HeadsView<float> dv, float* dbias, RangesShape s) {
  if (dbias) clear(dbias, s.heads * (2 * s.reach - 1));
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h) clear_rows(head_of(dk, b, h), s.keys, s.head), clear_rows(head_of(dv, b, h), s.keys, s.head);
  for_runs(
      s,
      [&](std::int64_t b, std::int64_t h, const QueryRun& run, const QueryBlock& block) {
        attend_backward(block, head_of(dout, b, h).from(run.begin), head_of(q, b, h).from(run.begin), head_of(k, b, h).from(run.first),
                        head_of(v, b, h).from(run.first), head_of(out, b, h).from(run.begin),
                        logsumexp + (b * s.heads + h) * s.queries + run.begin,
                        AttentionGradients<float>{head_of(dq, b, h).from(run.begin), head_of(dk, b, h).from(run.first),
                                                  head_of(dv, b, h).from(run.first), dbias ? dbias + (block.bias - s.bias) : nullptr});
      },
      [&](std::int64_t b, std::int64_t h, std::int64_t query) { clear(head_of(dq, b, h).at(query), s.head); });
}
