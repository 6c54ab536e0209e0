// Attention head by head, over blocks of queries: the scores of a block stay in the second-level cache and are never written out.

constexpr std::int64_t kScoreElements = 1 << 15;  // of a block of scores (128 KiB)

constexpr std::int64_t kMaxBlock = 32;            // queries of a block: a causal mask leaves whole blocks of keys out

inline std::int64_t block_queries(const AttentionShape& s) {
  const std::int64_t fit = kScoreElements / s.keys;
  return fit > kMaxBlock ? kMaxBlock : fit;
}
inline std::int64_t seen(const AttentionShape& s, std::int64_t query) {  // keys that queries before `query` see
  return s.causal && query < s.keys ? query : s.keys;
}

template <class T>
inline T* head_of(HeadsView<T> view, std::int64_t batch, std::int64_t head) {
  return view.data + batch * view.strides.batch + head * view.strides.head;
}
inline StridedMatrix rows(const float* data, std::int64_t stride) {
  return {data, stride, 1};
}
inline StridedMatrix columns(const float* data, std::int64_t stride) {
  return {data, 1, stride};
}  // transposed

// Scores to weights, exp(scale * (score - top)), over the first `visible` keys of `width`; the others get none. Returns their sum.
inline float weigh(float* row, std::int64_t visible, std::int64_t width, float top, float scale) {
  Vec sum{};
  const auto weight = [&](Vec v) { return exp((v - top) * scale); };
  std::int64_t c = 0;
  for (; c + kLanes <= visible; c += kLanes) {
    const Vec w = weight(load(row + c));
    store(row + c, w);
    sum += w;
  }
  if (const std::int64_t rest = visible - c; rest > 0) {
    const Vec w = weight(load_part(row + c, rest, kMinusInfinity));
    store_part(row + c, w, rest);
    sum += w;
  }
  clear(row + visible, width - visible);
  return sum_of(sum);
}

void attention(HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v, HeadsView<float> out, float* logsumexp,
               AttentionShape s) {
  alignas(64) float scores[kScoreElements];
  const std::int64_t block = block_queries(s);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries)
      for (std::int64_t begin = 0; begin < s.queries; begin += block) {
        const std::int64_t end = begin + block < s.queries ? begin + block : s.queries, keys = seen(s, end);
        const StridedMatrix queries = rows(head_of(q, b, h) + begin * q.strides.position, q.strides.position);
        gemm(end - begin, keys, s.head, queries, columns(head_of(k, b, h), k.strides.position), scores, keys, nullptr, false);
        float sums[kMaxBlock];
        for (std::int64_t i = begin; i < end; ++i) {
          float* row = scores + (i - begin) * keys;
          const std::int64_t visible = seen(s, i + 1);
          const float top = row_max(row, visible), sum = weigh(row, visible, keys, top, s.scale);
          logsumexp[i] = top * s.scale;
          sums[i - begin] = sum;
        }
        map2(logsumexp + begin, sums, logsumexp + begin, end - begin, [](Vec top, Vec sum) { return top + log(sum); });
        float* o = head_of(out, b, h) + begin * out.strides.position;
        gemm(end - begin, s.head, keys, rows(scores, keys), rows(head_of(v, b, h), v.strides.position), o, out.strides.position, nullptr,
             false);
        for (std::int64_t i = 0; i < end - begin; ++i, o += out.strides.position) scale(o, 1.0f / sums[i], o, s.head);
      }
}

// A row of scores becomes the probabilities, and one of dP becomes dS.
inline void score_backward(float* scores, float* dscores, std::int64_t visible, std::int64_t width, float logsumexp, float delta,
                           float scale) {
  each(visible, [&](std::int64_t c, auto read, auto write) {
    const Vec p = exp(read(scores + c) * scale - logsumexp);
    write(dscores + c, p * (read(dscores + c) - delta) * scale);
    write(scores + c, p);
  });
  clear(scores + visible, width - visible);
  clear(dscores + visible, width - visible);
}

void attention_backward(HeadsView<const float> dout, HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v,
                        HeadsView<const float> out, const float* logsumexp, HeadsView<float> dq, HeadsView<float> dk, HeadsView<float> dv,
                        AttentionShape s) {
  alignas(64) float scores[kScoreElements], dscores[kScoreElements];
  const std::int64_t block = block_queries(s), blocks = (s.queries + block - 1) / block;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h, logsumexp += s.queries)
      // From the last block, which sees every key: it stores dK and dV, the others add.
      for (std::int64_t begin = (blocks - 1) * block; begin >= 0; begin -= block) {
        const std::int64_t end = begin + block < s.queries ? begin + block : s.queries, count = end - begin;
        const std::int64_t keys = begin == (blocks - 1) * block ? s.keys : seen(s, end);
        const bool add = begin != (blocks - 1) * block;
        const float* q_rows = head_of(q, b, h) + begin * q.strides.position;
        const float* d_rows = head_of(dout, b, h) + begin * dout.strides.position;
        const float* o_rows = head_of(out, b, h) + begin * out.strides.position;
        gemm(count, keys, s.head, rows(q_rows, q.strides.position), columns(head_of(k, b, h), k.strides.position), scores, keys, nullptr,
             false);
        gemm(count, keys, s.head, rows(d_rows, dout.strides.position), columns(head_of(v, b, h), v.strides.position), dscores, keys,
             nullptr, false);
        for (std::int64_t i = 0; i < count; ++i) {
          const float* d = d_rows + i * dout.strides.position;
          const float* o = o_rows + i * out.strides.position;
          const float delta = row_sum(s.head, [&](std::int64_t c, auto read) { return read(d + c) * read(o + c); });
          score_backward(scores + i * keys, dscores + i * keys, seen(s, begin + i + 1), keys, logsumexp[begin + i], delta, s.scale);
        }
        gemm(keys, s.head, count, columns(scores, keys), rows(d_rows, dout.strides.position), head_of(dv, b, h), dv.strides.position,
             nullptr, add);
        gemm(count, s.head, keys, rows(dscores, keys), rows(head_of(k, b, h), k.strides.position),
             head_of(dq, b, h) + begin * dq.strides.position, dq.strides.position, nullptr, false);
        gemm(keys, s.head, count, columns(dscores, keys), rows(q_rows, q.strides.position), head_of(dk, b, h), dk.strides.position, nullptr,
             add);
      }
}
