// SPDX-License-Identifier: Apache-2.0
// Which ops a backward computes again because they cost little for the bytes that they take.
//
// A forward pays, on average, so many flops for each byte that it keeps for its backward. An op that makes its results for fewer is cheap.
// Ops are visited in their order, so what a cheap op reads is by then kept, computed again, or neither; in the last case it would have to
// be kept instead, and the op is computed again only if that is less. So no stage keeps more than it did.
#include <algorithm>
#include <set>
#include <utility>

#include "ops/definition.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// Whether an op may be done twice: it has a cost that is known, and no other member of an axis does it together with this one.
bool can_repeat(const Op& op) {
  return op.phase == Phase::forward && !op.operands.empty() && find_op(op.name) && !is_view(op) && !is_collective(op);
}

struct Marking {
  const Graph& body;
  IdVector<ValueId, ValueId> whole{};              // what a view is of, or the value itself
  IdVector<ValueId, bool> is_there{};              // constants, what is the same for all micro-batches, and what is computed again
  std::set<std::pair<ValueId, std::string>> kept;  // by the stage whose backward reads it

  double bytes(ValueId value) const { return static_cast<double>(body.type(value).bytes()); }
};

Marking marking_of(const Graph& body, std::size_t split) {
  Marking out{.body = body, .kept = {}};
  for (const ValueId value : body.values.ids()) out.whole.push_back(value);
  out.is_there.resize(body.values.size());
  for (std::size_t i = split; i < body.inputs.size(); ++i) out.is_there[body.inputs[i]] = true;
  IdVector<ValueId, bool> is_backward(body.values.size());
  for (const Op& op : body.ops) {
    for (const ValueId result : op.results) {
      out.is_there[result] = op.operands.empty();
      is_backward[result] = op.phase == Phase::backward;
    }
    if (is_view(op)) out.whole[op.results[0]] = out.whole[op.operands[0]];
    if (op.phase == Phase::forward) continue;
    for (const ValueId operand : op.operands)
      if (const ValueId of = out.whole[operand]; !out.is_there[of] && !is_backward[of]) out.kept.emplace(of, op.stage);
  }
  return out;
}

// Whether the backward need not keep more if it computes the op again. What it has to keep for that is kept from then on.
bool takes_no_more(Marking& m, const Op& op) {
  double saved = 0, more = 0;
  for (const ValueId result : op.results)
    if (m.kept.contains({result, op.stage})) saved += m.bytes(result);
  std::set<ValueId> needed;
  for (const ValueId operand : op.operands)
    if (const ValueId of = m.whole[operand]; !m.is_there[of] && !m.kept.contains({of, op.stage})) needed.insert(of);
  for (const ValueId value : needed) more += m.bytes(value);
  if (more > 0 && more >= saved) return false;
  for (const ValueId value : needed) m.kept.emplace(value, op.stage);
  return true;
}

}  // namespace

Graph mark_cheap(Graph step) {
  const auto loop = std::ranges::find_if(step.ops, [](const Op& op) { return op.body != nullptr; });
  Graph body = *loop->body;
  Marking marking = marking_of(*loop->body, static_cast<std::size_t>(attribute<std::int64_t>(*loop, "split")));
  double flops = 0, kept = 0;
  for (const Op& op : body.ops)
    if (op.phase == Phase::forward) flops += cost(body, op).flops;
  for (const auto& [value, stage] : marking.kept) kept += marking.bytes(value);
  for (Op& op : body.ops) {
    double made = 0;
    for (const ValueId result : op.results) made += marking.bytes(result);
    if (!can_repeat(op) || cost(body, op).flops * kept > flops * made || !takes_no_more(marking, op)) continue;
    op.attributes[kRecompute] = true;
    for (const ValueId result : op.results) marking.is_there[result] = true;
  }
  loop->body = std::make_shared<const Graph>(std::move(body));
  return step;
}

}  // namespace penstock
