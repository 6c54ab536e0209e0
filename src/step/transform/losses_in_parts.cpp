// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/infer.h"
#include "transform/layouts.h"

namespace penstock {
namespace {

bool is_split_loss(const Op& op, const GraphLayouts& layouts) {
  if (op.name != "cross_entropy") return false;
  const Layout& logits = layouts.values[op.operands[0]];
  return logits.is_split() && logits.dim == 1 && logits.outer == 1;
}

void add_in_parts(Graph& to, const Op& loss, const Layout& split, std::int64_t members) {
  const TensorType& logits = to.type(loss.operands[0]);
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  std::vector<std::int64_t> ends;
  for (std::int64_t m = 0; m < members; ++m) ends.push_back(range_of(split, classes, members, m).end);
  const ValueId parts = to.add_value({statistic(logits.dtype), {members, 2, rows}});
  Op part = loss, join = loss;
  part.name = "cross_entropy_parts";
  part.attributes = {{"ends", std::move(ends)}};
  part.results = {parts};
  join.name = "cross_entropy_join";
  join.attributes["classes"] = classes;
  join.operands[0] = parts;
  to.ops.push_back(std::move(part));
  to.ops.push_back(std::move(join));
}

}  // namespace

bool has_split_loss(const Graph& step, const GraphLayouts& layouts) {
  return std::ranges::any_of(
      step.ops, [&](const Op& op) { return is_split_loss(op, layouts) || (op.body && has_split_loss(*op.body, *layouts.body)); });
}

Graph losses_in_parts(const Graph& step, const GraphLayouts& layouts, std::int64_t members) {
  Graph out = step;
  out.ops = {};
  for (const Op& op : step.ops) {
    if (is_split_loss(op, layouts)) {
      add_in_parts(out, op, layouts.values[op.operands[0]], members);
      continue;
    }
    out.ops.push_back(op);
    if (op.body) out.ops.back().body = std::make_shared<const Graph>(losses_in_parts(*op.body, *layouts.body, members));
  }
  return out;
}

}  // namespace penstock
