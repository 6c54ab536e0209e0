// Attention head by head, over blocks of queries: the scores of a block stay in the second-level cache and are never written out.

constexpr std::int64_t kScoreElements = 1 << 15;  // of a block of scores (128 KiB)

inline std::int64_t block_queries(const AttentionShape& s) {
  const std::int64_t fit = kScoreElements / s.keys;
  return fit < 8 ? 8 : fit > 64 ? 64 : fit;
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

// Scores to probabilities over the first `visible` of `width` keys, the others zero. Returns the row's logsumexp.
inline float score_softmax(float* row, std::int64_t visible, std::int64_t width, float scale) {
  const float top = row_max(row, visible);
  map1(row, row, visible, [&](Vec v) { return exp((v - top) * scale); });
  __builtin_memset(row + visible, 0, static_cast<std::size_t>(width - visible) * sizeof(float));
  const float sum = row_sum(visible, [&](std::int64_t c, auto read) { return read(row + c); });
  map1(row, row, visible, [inverse = 1.0f / sum](Vec v) { return v * inverse; });
  return top * scale + logf(sum);
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
        for (std::int64_t i = begin; i < end; ++i) logsumexp[i] = score_softmax(scores + (i - begin) * keys, seen(s, i + 1), keys, s.scale);
        gemm(end - begin, s.head, keys, rows(scores, keys), rows(head_of(v, b, h), v.strides.position),
             head_of(out, b, h) + begin * out.strides.position, out.strides.position, nullptr, false);
      }
}

// One row of dS from a row of scores (overwritten by the probabilities) and one of dP (overwritten by dS).
inline void score_backward(float* scores, float* dscores, std::int64_t visible, std::int64_t width, float logsumexp, float delta,
                           float scale) {
  each(visible, [&](std::int64_t c, auto read, auto write) {
    const Vec p = exp(read(scores + c) * scale - logsumexp);
    write(dscores + c, p * (read(dscores + c) - delta) * scale);
    write(scores + c, p);
  });
  const auto rest = static_cast<std::size_t>(width - visible) * sizeof(float);
  __builtin_memset(scores + visible, 0, rest);
  __builtin_memset(dscores + visible, 0, rest);
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
