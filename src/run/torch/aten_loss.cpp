// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "base/text.h"
#include "torch/aten_composed.h"
#include "torch/aten_kernels.h"

namespace penstock {
namespace {

using T = at::Tensor;

T rows(const T& logits) {
  return widened(logits).reshape({-1, logits.size(-1)});
}

// Returns for each row the logit of its target; 0 where that is not among the classes.
T picked(const T& logits, const PartPlaces& places) {
  return at::where(places.is_here, logits.gather(1, places.at.unsqueeze(1)).squeeze(1), zero_like(logits));
}

T sum_of_kept(const T& losses, const T& targets, std::int64_t ignore) {
  return at::where(targets.reshape({-1}).ne(ignore), losses, zero_like(losses)).sum();
}

}  // namespace

IndexCheck cross_entropy_check(const Site& site, std::int64_t classes, std::int64_t ignored) {
  return {site.faults,
          classes,
          {"cross_entropy: target ", concat(" is outside its ", classes, " classes"), concat("targets to leave out are ", ignored)},
          ignored};
}

Bound cross_entropy_by_aten(const Site& site) {
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index");
  return composed(site, [ignore, check = cross_entropy_check(site, site.operands[0].size(-1), ignore)](const AtTensors& in) {
    const T x = rows(in[0]), sums = x.logsumexp(1), places = check(in[1].reshape({-1})).unsqueeze(1);
    return AtTensors{sum_of_kept(sums - x.gather(1, places).squeeze(1), in[1], ignore), sums};
  });
}

// Operands: dloss, logits, targets, logsumexp.
Bound cross_entropy_backward_by_aten(const Site& site) {
  return composed(site, [ignore = attribute<std::int64_t>(site.op, "ignore_index"),
                         begin = attribute_or(site.op, "begin", std::int64_t{0})](const AtTensors& in) {
    const T x = rows(in[1]), kept = in[2].reshape({-1, 1}).ne(ignore);
    const PartPlaces places(in[2], begin, x.size(1));
    const T softmax = (x - in[3].reshape({-1, 1})).exp();
    softmax.scatter_add_(1, places.at.unsqueeze(1), places.is_here.to(x.scalar_type()).neg().unsqueeze(1));
    return AtTensors{at::where(kept, softmax * in[0], zero_like(x))};
  });
}

// Results: of each range of classes a row of logsumexps, and one of target logits.
Bound cross_entropy_parts_by_aten(const Site& site) {
  return composed(site, [ends = attribute<std::vector<std::int64_t>>(site.op, "ends"),
                         begin = attribute_or(site.op, "begin", std::int64_t{0})](const AtTensors& in) {
    AtTensors parts;
    std::int64_t from = 0;
    for (const std::int64_t end : ends) {
      const T x = rows(in[0].narrow(1, from, end - from));
      parts.push_back(at::stack({x.logsumexp(1), picked(x, {in[1], begin + from, end - from})}));
      from = end;
    }
    return AtTensors{at::stack(parts)};
  });
}

// Operands: dparts, logits, targets, parts.
Bound cross_entropy_parts_backward_by_aten(const Site& site) {
  return composed(site, [ends = attribute<std::vector<std::int64_t>>(site.op, "ends"),
                         begin = attribute_or(site.op, "begin", std::int64_t{0})](const AtTensors& in) {
    const T x = rows(in[1]);
    AtTensors gradients;
    std::int64_t from = 0;
    for (std::size_t p = 0; p < ends.size(); from = ends[p++]) {
      const T of = in[3][static_cast<std::int64_t>(p)], dof = in[0][static_cast<std::int64_t>(p)], factor = dof[0].unsqueeze(1);
      const T part = x.narrow(1, from, ends[p] - from);
      const PartPlaces places(in[2], begin + from, part.size(1));
      const T gradient = at::where(factor.eq(0), zero_like(x), (part - of[0].unsqueeze(1)).exp() * factor);
      gradient.scatter_add_(1, places.at.unsqueeze(1), at::where(places.is_here, dof[1], zero_like(dof)).unsqueeze(1));
      gradients.push_back(gradient);
    }
    return AtTensors{at::cat(gradients, 1)};
  });
}

// Operands: parts, targets. Results: the loss, the logsumexp of all.
Bound cross_entropy_join_by_aten(const Site& site) {
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index");
  return composed(site,
                  [ignore, check = cross_entropy_check(site, attribute<std::int64_t>(site.op, "classes"), ignore)](const AtTensors& in) {
                    check(in[1]);
                    const T sums = in[0].select(1, 0).logsumexp(0);
                    return AtTensors{sum_of_kept(sums - in[0].select(1, 1).sum(0), in[1], ignore), sums};
                  });
}

}  // namespace penstock
