// Attention head by head, over blocks of queries: the scores of a block stay in the second-level cache and are never written out.

constexpr std::int64_t kScoreElements = 1 << 15;  // of a block of scores (128 KiB)

constexpr std::int64_t kMaxBlock = 32;  // queries of a block: a causal mask leaves whole blocks of keys out

inline std::int64_t block_queries(const AttentionShape& s) {
  const std::int64_t fit = kScoreElements / s.keys;
  return fit > kMaxBlock ? kMaxBlock : fit;
}
inline std::int64_t seen(const AttentionShape& s, std::int64_t query) {  // keys that queries before `query` see
  return s.causal && query < s.keys ? query : s.keys;
}

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

// A block's scores, and in their place what is made of them in T.
template <class T>
inline T* in_place(float* row) {
  return reinterpret_cast<T*>(row);
}
template <class T>
inline HeadRows<const T> in_place(const float* scores, std::int64_t keys) {
  return {reinterpret_cast<const T*>(scores), keys * static_cast<std::int64_t>(sizeof(float) / sizeof(T))};
}

// Queries that are computed together: each sees the first ones of `keys` keys. The bias, where there is one, is that of the block's first
// query and key; one query further it begins one element before.
struct AttentionBlock {
  std::int64_t queries, keys, head;
  float scale;
  const float* bias;
};

// With a bias: scores to scale * score + bias. Returns the scale that is left to apply.
inline float shift(const AttentionBlock& b, float* row, std::int64_t query, std::int64_t visible) {
  if (!b.bias) return b.scale;
  map2(row, b.bias - query, row, visible, [&](Vec score, Vec bias) { return score * b.scale + bias; });
  return 1;
}

// Scores to weights, exp(scale * (score - top)), over the first `visible` keys of `width`; the others get none. Returns their sum.
template <class T>
inline float weigh(float* row, std::int64_t visible, std::int64_t width, float top, float scale) {
  T* const weights = in_place<T>(row);
  Vec sum{};
  const auto weight = [&](Vec v) { return exp((v - top) * scale); };
  std::int64_t c = 0;
  for (; c + kLanes <= visible; c += kLanes) {
    const Vec w = weight(load(row + c));
    store(weights + c, w);
    sum += w;
  }
  if (const std::int64_t rest = visible - c; rest > 0) {
    const Vec w = weight(load_part(row + c, rest, kMinusInfinity));
    store_part(weights + c, w, rest);
    sum += w;
  }
  clear(weights + visible, width - visible);
  return sum_of(sum);
}

// The weights' product with v, each row divided by its sum. What f32 sums in place is summed apart where it is rounded.
template <class T>
void average(const AttentionBlock& b, const float* scores, HeadRows<const T> v, HeadRows<T> out, const float* sums) {
  constexpr bool kApart = sizeof(T) < sizeof(float);
  alignas(64) float apart[kApart ? kMaxBlock * kMaxAttentionHead : 1];
  float* product = apart;
  std::int64_t stride = b.head;
  if constexpr (!kApart) product = out.data, stride = out.stride;
  gemm_f32(b.queries, b.head, b.keys, rows(in_place<T>(scores, b.keys)), rows(v), product, stride, false);
  for (std::int64_t i = 0; i < b.queries; ++i) scale(product + i * stride, 1.0f / sums[i], out.at(i), b.head);
}

// `visible(i)`: the keys that query i of the block sees, at least 1. All operands begin with the block's first query or key.
template <class T, class Visible>
void attend(const AttentionBlock& b, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out, float* logsumexp,
            float* scores, Visible visible) {
  gemm_f32(b.queries, b.keys, b.head, rows(q), transposed(k), scores, b.keys, false);
  float sums[kMaxBlock];
  for (std::int64_t i = 0; i < b.queries; ++i) {
    float* row = scores + i * b.keys;
    const float factor = shift(b, row, i, visible(i));
    const float top = row_max(row, visible(i));
    sums[i] = weigh<T>(row, visible(i), b.keys, top, factor);
    logsumexp[i] = top * factor;
  }
  map2(logsumexp, sums, logsumexp, b.queries, [](Vec top, Vec sum) { return top + log(sum); });
  average(b, scores, v, out, sums);
}

template <class T>
void attention(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> out, float* logsumexp, AttentionShape s) {
  alignas(64) float scores[kScoreElements];
  const std::int64_t block = block_queries(s);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries)
      for (std::int64_t begin = 0; begin < s.queries; begin += block) {
        const std::int64_t end = begin + block < s.queries ? begin + block : s.queries;
        attend<T>({end - begin, seen(s, end), s.head, s.scale, nullptr}, head_of(q, b, h).from(begin), head_of(k, b, h), head_of(v, b, h),
                  head_of(out, b, h).from(begin), logsumexp + begin, scores, [&](std::int64_t i) { return seen(s, begin + i + 1); });
      }
}

// A row of scores becomes the probabilities, and one of dP becomes dS.
template <class T>
inline void score_backward(float* scores, float* dscores, std::int64_t visible, std::int64_t width, float logsumexp, float delta,
                           float scale) {
  T *const p = in_place<T>(scores), *const ds = in_place<T>(dscores);
  each(visible, [&](std::int64_t c, auto read, auto write) {
    const Vec weight = exp(read(scores + c) * scale - logsumexp);
    write(ds + c, weight * (read(dscores + c) - delta) * scale);
    write(p + c, weight);
  });
  clear(p + visible, width - visible);
  clear(ds + visible, width - visible);
}

template <class T>
struct AttentionGradients {
  HeadRows<T> dq;
  HeadRows<float> dk, dv;
  float* dbias;  // as the block's bias; null: there is none
};

// Adds to dbias; dk and dv of the block's keys are stored, or added to where `add`.
template <class T, class Visible>
void attend_backward(const AttentionBlock& b, HeadRows<const T> dout, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                     HeadRows<const T> out, const float* logsumexp, const AttentionGradients<T>& to, bool add, Visible visible) {
  alignas(64) float scores[kScoreElements], dscores[kScoreElements];
  gemm_f32(b.queries, b.keys, b.head, rows(q), transposed(k), scores, b.keys, false);
  gemm_f32(b.queries, b.keys, b.head, rows(dout), transposed(v), dscores, b.keys, false);
  for (std::int64_t i = 0; i < b.queries; ++i) {
    float *row = scores + i * b.keys, *drow = dscores + i * b.keys;
    const float delta = row_sum(b.head, [&](std::int64_t c, auto read) { return read(dout.at(i) + c) * read(out.at(i) + c); });
    const float factor = shift(b, row, i, visible(i));
    score_backward<T>(row, drow, visible(i), b.keys, logsumexp[i], delta, factor);
    if (!to.dbias) continue;
    map2(to.dbias - i, in_place<T>(drow), to.dbias - i, visible(i), [](Vec sum, Vec d) { return sum + d; });
    if (b.scale != 1) scale(in_place<T>(drow), b.scale, in_place<T>(drow), visible(i));
  }
  const HeadRows<const T> p = in_place<T>(scores, b.keys), ds = in_place<T>(dscores, b.keys);
  gemm_f32(b.keys, b.head, b.queries, transposed(p), rows(dout), to.dv.data, to.dv.stride, add);
  gemm(b.queries, b.head, b.keys, rows(ds), rows(k), to.dq.data, to.dq.stride, nullptr);
  gemm_f32(b.keys, b.head, b.queries, transposed(ds), rows(q), to.dk.data, to.dk.stride, add);
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

template <class T>
void attention_backward(HeadsView<const T> dout, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<const T> out,
                        const float* logsumexp, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv, AttentionShape s, float* sums) {
  const std::int64_t block = block_queries(s), last = (s.queries - 1) / block * block;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries) {
      const HeadRows<T> dk_rows = head_of(dk, b, h), dv_rows = head_of(dv, b, h);
      const HeadRows<float> dk_sums = summed(dk_rows, sums, s.head),
                            dv_sums = summed(dv_rows, sums ? sums + s.keys * s.head : sums, s.head);
      // From the last block, which sees every key: it stores dK and dV, the others add.
      for (std::int64_t begin = last; begin >= 0; begin -= block) {
        const std::int64_t end = begin + block < s.queries ? begin + block : s.queries;
        attend_backward<T>({end - begin, begin == last ? s.keys : seen(s, end), s.head, s.scale, nullptr}, head_of(dout, b, h).from(begin),
                           head_of(q, b, h).from(begin), head_of(k, b, h), head_of(v, b, h), head_of(out, b, h).from(begin),
                           logsumexp + begin, {head_of(dq, b, h).from(begin), dk_sums, dv_sums, nullptr}, begin != last,
                           [&](std::int64_t i) { return seen(s, begin + i + 1); });
      }
      round_sums(dk_sums, dk_rows, s);
      round_sums(dv_sums, dv_rows, s);
    }
}

// Queries that follow on each other and see keys from one on, or none at all.
struct QueryRun {
  std::int64_t begin, end, first, keys;  // keys: the most that one of them sees
};

// The run that begins with query `begin` of a row, of at most so many queries as a block of scores has room for.
inline QueryRun run_at(const std::int64_t* ranges, std::int64_t begin, std::int64_t queries) {
  const auto keys = [&](std::int64_t i) { return ranges[2 * i + 1] > ranges[2 * i] ? ranges[2 * i + 1] - ranges[2 * i] : 0; };
  QueryRun run{begin, begin + 1, ranges[2 * begin], keys(begin)};
  for (; run.end < queries && run.end - begin < kMaxBlock; ++run.end) {
    const std::int64_t more = keys(run.end), most = more > run.keys ? more : run.keys;
    if ((more == 0) != (run.keys == 0) || (more > 0 && ranges[2 * run.end] != run.first)) break;
    if ((run.end + 1 - begin) * most > kScoreElements) break;
    run.keys = most;
  }
  return run;
}

// Calls f(batch, head, run, block, visible) for the runs of queries that see keys, and none(batch, head, query) for each other query.
template <class F, class None>
void for_runs(const RangesShape& s, F f, None none) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t* ranges = s.ranges + 2 * b * s.queries;
      for (std::int64_t begin = 0; begin < s.queries;) {
        const QueryRun run = run_at(ranges, begin, s.queries);
        begin = run.end;
        if (run.keys == 0) {
          for (std::int64_t i = run.begin; i < run.end; ++i) none(b, h, i);
          continue;
        }
        const float* bias = s.bias ? s.bias + h * (2 * s.reach - 1) + run.first - run.begin - s.offset + s.reach - 1 : nullptr;
        f(b, h, run, AttentionBlock{run.end - run.begin, run.keys, s.head, s.scale, bias},
          [&](std::int64_t i) { return ranges[2 * (run.begin + i) + 1] - run.first; });
      }
    }
}

void attention_in_ranges(HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v, HeadsView<float> out,
                         float* logsumexp, RangesShape s) {
  alignas(64) float scores[kScoreElements];
  const auto sums = [&](std::int64_t b, std::int64_t h) { return logsumexp + (b * s.heads + h) * s.queries; };
  for_runs(
      s,
      [&](std::int64_t b, std::int64_t h, const QueryRun& run, const AttentionBlock& block, auto visible) {
        attend<float>(block, head_of(q, b, h).from(run.begin), head_of(k, b, h).from(run.first), head_of(v, b, h).from(run.first),
                      head_of(out, b, h).from(run.begin), sums(b, h) + run.begin, scores, visible);
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
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t key = 0; key < s.keys; ++key) {
        clear(head_of(dk, b, h).at(key), s.head);
        clear(head_of(dv, b, h).at(key), s.head);
      }
  for_runs(
      s,
      [&](std::int64_t b, std::int64_t h, const QueryRun& run, const AttentionBlock& block, auto visible) {
        attend_backward<float>(block, head_of(dout, b, h).from(run.begin), head_of(q, b, h).from(run.begin),
                               head_of(k, b, h).from(run.first), head_of(v, b, h).from(run.first), head_of(out, b, h).from(run.begin),
                               logsumexp + (b * s.heads + h) * s.queries + run.begin,
                               {head_of(dq, b, h).from(run.begin), head_of(dk, b, h).from(run.first), head_of(dv, b, h).from(run.first),
                                dbias ? dbias + (block.bias - s.bias) : nullptr},
                               true, visible);
      },
      [&](std::int64_t b, std::int64_t h, std::int64_t query) { clear(head_of(dq, b, h).at(query), s.head); });
}
