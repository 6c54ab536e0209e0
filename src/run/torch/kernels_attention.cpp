// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/aten_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

// The shape for q [batch, heads, queries, head] and k [batch, heads, keys, head].
AttentionShape shape_of(const Op& op, const T& q, const T& k) {
  return {q.size(0),
          q.size(1),
          q.size(2),
          k.size(2),
          q.size(3),
          attribute<bool>(op, "is_causal"),
          static_cast<float>(number_attribute(op, "scale"))};
}

template <class F>
struct PlacedHeads {
  Place<F> place;
  HeadStrides strides;

  operator HeadsView<F>() const { return {place, strides}; }
};

template <class F>
PlacedHeads<F> heads(const T& x) {
  return {Place<F>(x), {x.stride(0), x.stride(1), x.stride(2)}};
}

template <class E>
bool is_for_ours(std::initializer_list<T> tensors, const AttentionShape& shape) {
  if (shape.head > kMaxAttentionHead || shape.keys == 0 || shape.queries == 0) return false;
  for (const T& x : tensors)
    if (x.scalar_type() != kScalarOf<E> || x.stride(3) != 1) return false;
  return true;
}
// bind(loops) with our own loops for the tensors' dtype; no call where there are none.
template <class Bind>
Bound bind_heads(Bind bind, std::initializer_list<T> tensors, const AttentionShape& shape) {
  if (is_for_ours<float>(tensors, shape)) return bind(static_cast<const ElementKernels<float>&>(vector_kernels()));
  if (is_for_ours<Bf16>(tensors, shape)) return bind(vector_kernels().bf16);
  return {};
}

// libtorch's own wants dense heads, and reads other operands as if they were.
Bound bind_attention(const Site& site) {
  const T &q = site.operands[0], &k = site.operands[1], &v = site.operands[2], &out = site.results[0], &logsumexp = site.results[1];
  const AttentionShape shape = shape_of(site.op, q, k);
  const std::optional<T> bias = site.operands.size() > 3 ? std::optional<T>(site.operands[3]) : std::nullopt;
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.attention, a = heads<const E>(q), b = heads<const E>(k), c = heads<const E>(v), o = heads<E>(out),
            l = mutable_floats(logsumexp), shape] { f(a, b, c, o, l, shape); };
  };
  if (!bias && is_dense_f32(logsumexp))
    if (Bound own = bind_heads(bind, {q, k, v, out}, shape)) return own;
  return [q, k, v, bias, out, logsumexp, causal = shape.causal, scale = number_attribute(site.op, "scale")] {
    const auto result =
        at::_scaled_dot_product_flash_attention_for_cpu(q.contiguous(), k.contiguous(), v.contiguous(), 0.0, causal, bias, scale);
    out.copy_(std::get<0>(result));
    logsumexp.copy_(std::get<1>(result));
  };
}

// Operands: dout, q, k, v, out, logsumexp, bias?.
Bound bind_attention_backward(const Site& site) {
  const T &dout = site.operands[0], &q = site.operands[1], &k = site.operands[2], &v = site.operands[3], &out = site.operands[4];
  const T &logsumexp = site.operands[5], &dq = site.results[0], &dk = site.results[1], &dv = site.results[2];
  const AttentionShape shape = shape_of(site.op, q, k);
  const std::optional<T> bias = site.operands.size() > 6 ? std::optional<T>(site.operands[6]) : std::nullopt;
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.attention_backward, d = heads<const E>(dout), a = heads<const E>(q), b = heads<const E>(k), c = heads<const E>(v),
            o = heads<const E>(out), l = floats(logsumexp), da = heads<E>(dq), db = heads<E>(dk), dc = heads<E>(dv), shape] {
      const T sums = sizeof(E) < sizeof(float) ? at::empty({2, shape.keys, shape.head}) : T();
      f(d, a, b, c, o, l, da, db, dc, shape, mutable_floats(sums));
    };
  };
  if (!bias && is_dense_f32(logsumexp))
    if (Bound own = bind_heads(bind, {dout, q, k, v, out, dq, dk, dv}, shape)) return own;
  return [=, causal = shape.causal, scale = number_attribute(site.op, "scale")] {
    const auto result =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(dout.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(),
                                                                 out.contiguous(), logsumexp.contiguous(), 0.0, causal, bias, scale);
    dq.copy_(std::get<0>(result));
    dk.copy_(std::get<1>(result));
    dv.copy_(std::get<2>(result));
  };
}

// The weight that a row of one of the two has in the whole: exp of how far its logsumexp lies below the joint one.
template <class Scalar>
void join_rows(const Scalar* a, const Scalar* la, const Scalar* b, const Scalar* lb, Scalar* out, Scalar* logsumexp, NormShape shape) {
  for (std::int64_t r = 0; r < shape.rows; ++r, a += shape.width, b += shape.width, out += shape.width) {
    const Scalar top = std::max(la[r], lb[r]), least = std::min(la[r], lb[r]);
    logsumexp[r] = std::isinf(least) ? top : top + std::log1p(std::exp(least - top));
    const Scalar wa = std::isinf(la[r]) ? 0 : std::exp(la[r] - logsumexp[r]), wb = std::isinf(lb[r]) ? 0 : std::exp(lb[r] - logsumexp[r]);
    for (std::int64_t c = 0; c < shape.width; ++c) out[c] = wa * a[c] + wb * b[c];
  }
}

// Operands: out, logsumexp, other out, other logsumexp.
Bound bind_attention_join(const Site& site) {
  return [a = site.operands[0], la = site.operands[1], b = site.operands[2], lb = site.operands[3], out = site.results[0],
          logsumexp = site.results[1], shape = rows_of(site.operands[0])] {
    const T x = widened_dense(a), lx = widened_dense(la), y = widened_dense(b), ly = widened_dense(lb), sum = widened(out);
    by_scalar(x, [&]<class Scalar>(Scalar) {
      join_rows<Scalar>(data_of<Scalar>(x), data_of<Scalar>(lx), data_of<Scalar>(y), data_of<Scalar>(ly), data_of<Scalar>(sum),
                        data_of<Scalar>(logsumexp), shape);
    });
    if (is_low_precision(out)) out.copy_(sum);
  };
}

// The operands of attention in ranges as its loops want them: in one dtype, f32 or f64, and, but for what f32 reads through strides, dense.
struct InRanges {
  RangesShape shape;
  double scale;
  T ranges, bias;  // the bias may be undefined
  bool causal;
};

InRanges in_ranges(const Op& op, const T& q, const T& k, std::span<const T> rest) {
  const double scale = number_attribute(op, "scale");
  const T bias = rest.size() > 1 ? rest[1] : T();
  return {{q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), attribute<std::int64_t>(op, "reach"), nullptr, nullptr,
           static_cast<float>(scale), attribute_or(op, "offset", std::int64_t{0})},
          scale,
          rest[0],
          bias,
          attribute_or(op, "is_causal", false)};
}

// The ranges, dense, once they are known to name keys that there are, and that the queries may attend to.
T checked_ranges(const InRanges& in) {
  const RangesShape& shape = in.shape;
  const T ranges = in.ranges.contiguous();
  const auto* values = data_of<const std::int64_t>(ranges);
  for (std::int64_t i = 0; i < shape.batch * shape.queries; ++i) {
    const std::int64_t first = values[2 * i], end = values[2 * i + 1], query = i % shape.queries, place = query + shape.offset;
    if (end <= first) continue;
    const auto fail = [&](const std::string& why) {
      throw Error(concat("attention_in_ranges: query ", query, " attends to keys ", first, " to ", end - 1), {why});
    };
    if (first < 0 || end > shape.keys || end - first > shape.reach)
      fail(concat("there are ", shape.keys, " keys; no query attends to more than ", shape.reach));
    if (in.bias.defined() && (first <= place - shape.reach || end - 1 >= place + shape.reach))
      fail(concat("the bias is of distances below ", shape.reach));
    if (in.causal && end - 1 > place) fail("it is causal: no query attends to keys behind it");
  }
  return ranges;
}

// A query of one head and the keys it attends to, by plain loops over dense tensors [batch, heads, length, head].
template <class Scalar, class F>
void for_queries(const RangesShape& s, F f) {
  for (std::int64_t row = 0; row < s.batch * s.heads * s.queries; ++row) {
    const std::int64_t query = row % s.queries, head = row / s.queries, batch = head / s.heads;
    const std::int64_t* range = s.ranges + 2 * (batch * s.queries + query);
    const std::int64_t count = std::max<std::int64_t>(range[1] - range[0], 0);
    const std::int64_t key = head * s.keys + (count > 0 ? range[0] : 0);  // row of k and v
    const std::int64_t bias = head % s.heads * (2 * s.reach - 1) + range[0] - query - s.offset + s.reach - 1;
    f(row, key, count, bias);
  }
}

template <class Scalar>
Scalar dot(const Scalar* a, const Scalar* b, std::int64_t n) {
  return std::inner_product(a, a + n, b, Scalar(0));
}

template <class Scalar>
void attend_plainly(const Scalar* q, const Scalar* k, const Scalar* v, const Scalar* bias, Scalar* out, Scalar* logsumexp, Scalar scale,
                    const RangesShape& s) {
  std::vector<Scalar> scores(static_cast<std::size_t>(s.reach));
  for_queries<Scalar>(s, [&](std::int64_t row, std::int64_t key, std::int64_t count, std::int64_t shift) {
    Scalar* to = out + row * s.head;
    std::fill_n(to, s.head, Scalar(0));
    logsumexp[row] = -std::numeric_limits<Scalar>::infinity();
    if (count == 0) return;
    for (std::int64_t j = 0; j < count; ++j)
      scores[j] = scale * dot(q + row * s.head, k + (key + j) * s.head, s.head) + (bias ? bias[shift + j] : 0);
    const Scalar top = *std::max_element(scores.begin(), scores.begin() + count);
    Scalar sum = 0;
    for (std::int64_t j = 0; j < count; ++j) sum += std::exp(scores[j] - top);
    logsumexp[row] = top + std::log(sum);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t c = 0; c < s.head; ++c) to[c] += std::exp(scores[j] - logsumexp[row]) * v[(key + j) * s.head + c];
  });
}

template <class Scalar>
struct PlainGradients {
  Scalar *dq, *dk, *dv, *dbias;  // dbias: may be null
};

template <class Scalar>
void attend_backward_plainly(const Scalar* dout, const Scalar* q, const Scalar* k, const Scalar* v, const Scalar* out,
                             const Scalar* logsumexp, const Scalar* bias, const PlainGradients<Scalar>& to, Scalar scale,
                             const RangesShape& s) {
  for_queries<Scalar>(s, [&](std::int64_t row, std::int64_t key, std::int64_t count, std::int64_t shift) {
    const Scalar* d = dout + row * s.head;
    const Scalar delta = dot(d, out + row * s.head, s.head);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t at = (key + j) * s.head;
      const Scalar score = scale * dot(q + row * s.head, k + at, s.head) + (bias ? bias[shift + j] : 0);
      const Scalar weight = std::exp(score - logsumexp[row]), dscore = weight * (dot(d, v + at, s.head) - delta);
      if (to.dbias) to.dbias[shift + j] += dscore;
      for (std::int64_t c = 0; c < s.head; ++c) {
        to.dv[at + c] += weight * d[c];
        to.dk[at + c] += scale * dscore * q[row * s.head + c];
        to.dq[row * s.head + c] += scale * dscore * k[at + c];
      }
    }
  });
}

// The ranges, and the bias where there is one, as a call reads them. The bias is made dense at each call: it is small, and often a view of
// a table.
struct ReadRanges {
  T ranges, bias;
  RangesShape shape;

  explicit ReadRanges(const InRanges& in)
      : ranges(checked_ranges(in)), bias(in.bias.defined() ? widened_dense(in.bias) : in.bias), shape(in.shape) {
    shape.ranges = data_of<const std::int64_t>(ranges);
    if (bias.defined() && bias.scalar_type() == at::kFloat) shape.bias = data_of<const float>(bias);
  }
};

bool are_for_ours(std::initializer_list<T> tensors, const InRanges& in, const T& logsumexp) {
  const RangesShape& s = in.shape;
  return is_for_ours<float>(tensors, {s.batch, s.heads, s.queries, std::min(s.keys, s.reach), s.head, false, s.scale}) &&
         is_dense_f32(logsumexp) && (!in.bias.defined() || in.bias.scalar_type() == at::kFloat);
}

// Operands: q, k, v, ranges, bias?.
Bound bind_in_ranges(const Site& site) {
  const T &q = site.operands[0], &k = site.operands[1], &v = site.operands[2], &out = site.results[0], &logsumexp = site.results[1];
  const InRanges in = in_ranges(site.op, q, k, site.operands.subspan(3));
  if (are_for_ours({q, k, v, out}, in, logsumexp))
    return [f = vector_kernels().attention_in_ranges, a = heads<const float>(q), b = heads<const float>(k), c = heads<const float>(v),
            o = heads<float>(out), l = mutable_floats(logsumexp), in] {
      const ReadRanges read(in);
      f(a, b, c, o, l, read.shape);
    };
  return [=] {
    const ReadRanges read(in);
    const T a = widened_dense(q), b = widened_dense(k), c = widened_dense(v), to = at::empty_like(a), sums = widened_dense(logsumexp);
    by_scalar(a, [&]<class Scalar>(Scalar) {
      attend_plainly(data_of<const Scalar>(a), data_of<const Scalar>(b), data_of<const Scalar>(c), data_of<const Scalar>(read.bias),
                     data_of<Scalar>(to), data_of<Scalar>(sums), static_cast<Scalar>(in.scale), read.shape);
    });
    out.copy_(to);
    logsumexp.copy_(sums);
  };
}

// Operands: dout, q, k, v, out, logsumexp, ranges, bias?.
Bound bind_in_ranges_backward(const Site& site) {
  const T &dout = site.operands[0], &q = site.operands[1], &k = site.operands[2], &v = site.operands[3], &out = site.operands[4];
  const T &logsumexp = site.operands[5], &dq = site.results[0], &dk = site.results[1], &dv = site.results[2];
  const InRanges in = in_ranges(site.op, q, k, site.operands.subspan(6));
  const T dbias = in.bias.defined() ? site.results[3] : T();
  if (are_for_ours({dout, q, k, v, out, dq, dk, dv}, in, logsumexp) && (!dbias.defined() || is_dense_f32(dbias)))
    return [f = vector_kernels().attention_in_ranges_backward, d = heads<const float>(dout), a = heads<const float>(q),
            b = heads<const float>(k), c = heads<const float>(v), o = heads<const float>(out), l = floats(logsumexp), da = heads<float>(dq),
            db = heads<float>(dk), dc = heads<float>(dv), dbias, in] {
      const ReadRanges read(in);
      f(d, a, b, c, o, l, da, db, dc, data_of<float>(dbias), read.shape);
    };
  return [=] {
    const ReadRanges read(in);
    const T d = widened_dense(dout), a = widened_dense(q), b = widened_dense(k), c = widened_dense(v), o = widened_dense(out);
    const T sums = widened_dense(logsumexp), da = at::zeros_like(a), db = at::zeros_like(b), dc = at::zeros_like(c);
    const T dd = read.bias.defined() ? at::zeros_like(read.bias) : T();
    by_scalar(a, [&]<class Scalar>(Scalar) {
      attend_backward_plainly<Scalar>(
          data_of<const Scalar>(d), data_of<const Scalar>(a), data_of<const Scalar>(b), data_of<const Scalar>(c), data_of<const Scalar>(o),
          data_of<const Scalar>(sums), data_of<const Scalar>(read.bias),
          {data_of<Scalar>(da), data_of<Scalar>(db), data_of<Scalar>(dc), data_of<Scalar>(dd)}, static_cast<Scalar>(in.scale), read.shape);
    });
    dq.copy_(da);
    dk.copy_(db);
    dv.copy_(dc);
    if (dd.defined()) dbias.copy_(dd);
  };
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const Kernel all[] = {
      {.name = "attention_in_ranges", .bind = bind_in_ranges, .bind_device = attention_in_ranges_by_aten},
      {.name = "attention_in_ranges_backward", .bind = bind_in_ranges_backward, .bind_device = attention_in_ranges_backward_by_aten},
      {.name = "attention_join", .bind = bind_attention_join, .bind_device = attention_join_by_aten},
      {.name = "scaled_dot_product_attention", .bind = bind_attention, .bind_device = attention_by_aten},
      {.name = "scaled_dot_product_attention_backward", .bind = bind_attention_backward, .bind_device = attention_backward_by_aten},
  };
  return all;
}

}  // namespace penstock
