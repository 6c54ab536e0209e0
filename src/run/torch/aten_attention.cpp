// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "torch/aten_composed.h"
#include "torch/aten_kernels.h"

namespace penstock {
namespace {

using T = at::Tensor;

constexpr double kNone = -std::numeric_limits<double>::infinity();

T number(double value, const T& like) {
  return at::scalar_tensor(value, like.options());
}

// Scores with -inf where a query does not attend to a key.
T masked(const T& scores, const T& attends) {
  return at::where(attends, scores, number(kNone, scores));
}

T scores_of(const T& q, const T& k, double scale) {
  return at::matmul(widened(q), widened(k).transpose(-1, -2)).mul_(scale);
}

T causal_scores(const T& q, const T& k, double scale, bool causal, const T& bias) {
  T scores = scores_of(q, k, scale);
  if (bias.defined()) scores = bias.scalar_type() == at::kBool ? masked(scores, bias) : scores + bias;
  if (!causal) return scores;
  const auto places = [&](std::int64_t count) { return at::arange(count, q.options().dtype(at::kLong)); };
  return masked(scores, places(k.size(2)).unsqueeze(0).le(places(q.size(2)).unsqueeze(1)));
}

// exp(scores - logsumexp), and zeros for a query that attends to nothing.
T weights_of(const T& scores, const T& logsumexp) {
  const T sums = logsumexp.unsqueeze(-1);
  return at::where(sums.eq(kNone), number(0, scores), (scores - sums).exp());
}

AtTensors attended(const T& scores, const T& v) {
  const T sums = scores.logsumexp(-1);
  return {at::matmul(weights_of(scores, sums), widened(v)), sums};
}

struct Gradients {
  T dq, dk, dv, dscores;
};

// in: dout, q, k, v, out, logsumexp.
Gradients attended_backward(const AtTensors& in, const T& scores, double scale) {
  const T dout = widened(in[0]), weights = weights_of(scores, in[5]);
  const T delta = (dout * widened(in[4])).sum(-1, true);
  const T dscores = weights * (at::matmul(dout, widened(in[3]).transpose(-1, -2)) - delta);
  return {at::matmul(dscores, widened(in[2])) * scale, at::matmul(dscores.transpose(-1, -2), widened(in[1])) * scale,
          at::matmul(weights.transpose(-1, -2), dout), dscores};
}

// Attention of each query to the keys of its range, with a bias by distance.
struct Ranges {
  std::int64_t reach, offset;
  double scale;
  bool has_bias;

  Ranges(const Op& op, bool bias)
      : reach(attribute<std::int64_t>(op, "reach")),
        offset(attribute_or(op, "offset", std::int64_t{0})),
        scale(number_attribute(op, "scale")),
        has_bias(bias) {}

  // Returns for each query and key its place among the distances of the bias, the nearest one for those that lie too far.
  T distances(const T& q, const T& k) const {
    const auto places = [&](std::int64_t count) { return at::arange(count, q.options().dtype(at::kLong)); };
    const T apart = places(k.size(2)).unsqueeze(0) - places(q.size(2)).unsqueeze(1) + (reach - 1 - offset);
    return apart.clamp(0, 2 * reach - 2).reshape({-1});
  }
  T scores(const T& q, const T& k, const T& ranges, const T& bias) const {
    T all = scores_of(q, k, scale);
    if (has_bias)
      all = all + widened(bias).reshape({1, q.size(1), -1}).index_select(2, distances(q, k)).view({1, q.size(1), q.size(2), k.size(2)});
    const T keys = at::arange(k.size(2), ranges.options()), of = ranges.reshape({q.size(0), 1, q.size(2), 2});
    return masked(all, keys.ge(of.select(3, 0).unsqueeze(-1)).logical_and(keys.lt(of.select(3, 1).unsqueeze(-1))));
  }
};

}  // namespace

// Operands: q, k, v [batch, heads, length, head], bias?.
Bound attention_by_aten(const Site& site) {
  return composed(site, [causal = attribute<bool>(site.op, "is_causal"), scale = number_attribute(site.op, "scale")](const AtTensors& in) {
    return attended(causal_scores(in[0], in[1], scale, causal, in.size() > 3 ? in[3] : T()), in[2]);
  });
}

// Operands: dout, q, k, v, out, logsumexp, bias?.
Bound attention_backward_by_aten(const Site& site) {
  return composed(site, [causal = attribute<bool>(site.op, "is_causal"), scale = number_attribute(site.op, "scale")](const AtTensors& in) {
    const T scores = causal_scores(in[1], in[2], scale, causal, in.size() > 6 ? in[6] : T());
    const Gradients gradients = attended_backward(in, scores, scale);
    return AtTensors{gradients.dq, gradients.dk, gradients.dv};
  });
}

// Operands: out, logsumexp, other out, other logsumexp.
Bound attention_join_by_aten(const Site& site) {
  return composed(site, [](const AtTensors& in) {
    const T sums = at::logaddexp(in[1], in[3]);
    return AtTensors{weights_of(in[1].unsqueeze(-1), sums) * widened(in[0]) + weights_of(in[3].unsqueeze(-1), sums) * widened(in[2]), sums};
  });
}

// Operands: q, k, v, ranges [batch, queries, 2], bias?.
Bound attention_in_ranges_by_aten(const Site& site) {
  return composed(site, [of = Ranges(site.op, site.operands.size() > 4)](const AtTensors& in) {
    return attended(of.scores(in[0], in[1], in[3], of.has_bias ? in[4] : T()), in[2]);
  });
}

// Operands: dout, q, k, v, out, logsumexp, ranges, bias?.
Bound attention_in_ranges_backward_by_aten(const Site& site) {
  return composed(site, [of = Ranges(site.op, site.operands.size() > 7)](const AtTensors& in) {
    const T &q = in[1], &k = in[2];
    const Gradients gradients = attended_backward(in, of.scores(q, k, in[6], of.has_bias ? in[7] : T()), of.scale);
    AtTensors out{gradients.dq, gradients.dk, gradients.dv};
    if (of.has_bias) {
      const T sums = gradients.dscores.sum(0).reshape({q.size(1), -1});
      out.push_back(at::zeros({q.size(1), 2 * of.reach - 1}, sums.options()).index_add_(1, of.distances(q, k), sums));
    }
    return out;
  });
}

}  // namespace penstock
