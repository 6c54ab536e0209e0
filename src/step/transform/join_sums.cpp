// SPDX-License-Identifier: Apache-2.0
// Small sums over an axis, side by side: a message costs as much as some ten thousand numbers, and a block's norms and biases are a few
// hundred (torch's DTensor sends each by itself).
#include <map>
#include <tuple>

#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

constexpr std::int64_t kMostBytes = 64 << 10;  // of one tensor; it is copied before and behind the sum

// Sums of one axis, dtype and stage. The stage is the one in the loop: what is of different stages may be on different devices.
using Kind = std::tuple<std::string, std::int64_t, DType, std::string>;

// The sums that can start as soon as the loop ends, by kind.
std::map<Kind, std::vector<OpId>> small_sums(const Graph& step, OpId loop) {
  const Op& accumulate = step.ops[loop];
  const IdVector<ValueId, OpId> inside = producers(*accumulate.body);
  std::map<ValueId, std::string> stage_of;  // of the loop's results
  for (std::size_t r = 0; r < accumulate.results.size(); ++r)
    if (const OpId made = inside[accumulate.body->outputs[r]]) stage_of[accumulate.results[r]] = accumulate.body->ops[made].stage;
  std::map<Kind, std::vector<OpId>> out;
  for (const OpId i : step.ops.ids()) {
    const Op& op = step.ops[i];
    if (op.name != "all_reduce" || !stage_of.contains(op.operands[0])) continue;
    const TensorType& type = step.type(op.operands[0]);
    if (type.bytes() > kMostBytes) continue;
    out[{attribute<std::string>(op, "axis"), attribute<std::int64_t>(op, "size"), type.dtype, stage_of[op.operands[0]]}].push_back(i);
  }
  std::erase_if(out, [](const auto& kind) { return kind.second.size() < 2; });
  return out;
}

void add_joined(Rewrite& out, const Graph& step, const std::vector<OpId>& sums) {
  const Op& marks = step.ops[sums[0]];
  const DType dtype = step.type(marks.operands[0]).dtype;
  std::vector<ValueId> flat;
  std::int64_t elements = 0;
  for (const OpId sum : sums) {
    const ValueId v = step.ops[sum].operands[0];
    const std::int64_t own = step.type(v).elements();
    flat.push_back(add_like(out.graph, marks, "reshape", {out[v]}, {{"shape", Shape{own}}}, {dtype, {own}}));
    elements += own;
  }
  const ValueId all = add_like(out.graph, marks, "cat", std::move(flat), {{"dim", std::int64_t{0}}}, {dtype, {elements}});
  const ValueId summed = add_like(out.graph, marks, "all_reduce", {all}, marks.attributes, {dtype, {elements}});
  for (std::int64_t begin = 0; const OpId sum : sums) {
    const ValueId v = step.ops[sum].results[0];
    const std::int64_t own = step.type(v).elements();
    const ValueId part =
        add_like(out.graph, marks, "slice", {summed},
                 {{"dim", std::int64_t{0}}, {"start", begin}, {"end", begin + own}, {"step", std::int64_t{1}}}, {dtype, {own}});
    out[v] = add_like(out.graph, marks, "reshape", {part}, {{"shape", step.type(v).shape}}, step.type(v));
    begin += own;
  }
}

}  // namespace

Graph join_sums(const Graph& step) {
  Rewrite out = Rewrite::with_inputs(step);
  for (const OpId i : step.ops.ids()) {
    const Op& op = step.ops[i];
    if (op.results.empty() || !out[op.results[0]]) out.copy(op);
    if (!op.body) continue;
    for (const auto& [kind, sums] : small_sums(step, i)) add_joined(out, step, sums);
  }
  return out.finish();
}

}  // namespace penstock
