// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/definition.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

// The most variable thing that a value of a loop body depends on.
enum class Depends : std::uint8_t { on_nothing, on_invariants, on_parts };

struct Split {
  IdVector<OpId, bool> hoisted;  // whether the op leaves the body
  // Ops that stay and are computed outside too, for the hoisted ones: constants, and views, which would cost memory to hand over and save
  // nothing.
  IdVector<OpId, bool> copied;
};

// The values that are summed over the micro-batches: the loop's results and, where one is a join, its terms, which the stages that made
// them add (stage/cut.cpp).
IdVector<ValueId, bool> summed_values(const Graph& body) {
  IdVector<ValueId, bool> out(body.values.size());
  for (const ValueId output : body.outputs) out[output] = true;
  for (const Op& op : body.ops)
    if (op.name == "add_n" && out[op.results[0]])
      for (const ValueId term : op.operands) out[term] = true;
  return out;
}

Split split_body(const Graph& body, std::size_t parts) {
  const IdVector<ValueId, bool> summed = summed_values(body);
  IdVector<ValueId, Depends> depends(body.values.size(), Depends::on_invariants);
  for (std::size_t i = 0; i < parts; ++i) depends[body.inputs[i]] = Depends::on_parts;
  Split out{std::vector<bool>(body.ops.size()), std::vector<bool>(body.ops.size())};
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const Op& op = body.ops[i];
    // An op that members do together is done in tasks of the loop or behind it.
    Depends most = op.body || (is_collective(op) && op.name != "reduce_gradient") ? Depends::on_parts : Depends::on_nothing;
    for (ValueId operand : op.operands) most = std::max(most, depends[operand]);
    for (ValueId result : op.results) depends[result] = most;
    // Sums' terms are computed in the loop.
    const bool is_summed = std::ranges::any_of(op.results, [&](ValueId result) { return summed[result]; });
    out.hoisted[i] = most == Depends::on_invariants && !is_view(op) && !is_summed;
  }
  const IdVector<ValueId, OpId> producer = producers(body);
  for (std::size_t i = body.ops.size(); i-- > 0;) {
    if (!out.hoisted[i] && !out.copied[i]) continue;
    for (ValueId operand : body.ops[i].operands)
      if (const OpId from = producer[operand]; from && !out.hoisted[from]) out.copied[from] = true;
  }
  return out;
}

// Appends the ops that leave or are copied to the step; returns for each value of the body the step's value (none where there is none).
IdVector<ValueId, ValueId> append_outside(Rewrite& step, const Op& loop, std::size_t parts, const Split& split) {
  const Graph& body = *loop.body;
  IdVector<ValueId, ValueId> outside(body.values.size());
  for (std::size_t i = parts; i < body.inputs.size(); ++i) outside[body.inputs[i]] = step[loop.operands[i]];
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    if (!split.hoisted[i] && !split.copied[i]) continue;
    Op op = body.ops[i];
    op.phase = Phase::forward;
    op.sequence = -1;  // numbers of the body mean nothing outside
    op.attributes.erase(kRecompute);
    op.attributes.erase(kOffload);
    for (ValueId& operand : op.operands) operand = outside[operand];
    for (ValueId& result : op.results) {
      const Value& value = body.values[result];
      result = outside[result] = step.graph.add_value(value.type, value.name);
    }
    step.graph.ops.push_back(std::move(op));
  }
  return outside;
}

void hoist_loop(Rewrite& step, const Op& loop) {
  const std::size_t parts = attribute<std::int64_t>(loop, "split");
  const Graph& body = *loop.body;
  const Split split = split_body(body, parts);
  const IdVector<ValueId, ValueId> outside = append_outside(step, loop, parts, split);

  Op& made = step.copy(loop);
  Rewrite inner = Rewrite::with_inputs(body);
  const IdVector<ValueId, OpId> producer = producers(body);
  const auto read = [&](ValueId value) {
    const OpId from = producer[value];
    if (!from || !split.hoisted[from] || inner[value]) return;
    const std::string name = "hoisted." + std::to_string(inner.graph.inputs.size());
    inner[value] = inner.graph.add_input(body.type(value), name);
    made.operands.push_back(outside[value]);
  };
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    if (split.hoisted[i]) continue;
    std::for_each(body.ops[i].operands.begin(), body.ops[i].operands.end(), read);
    inner.copy(body.ops[i]);
  }
  std::for_each(body.outputs.begin(), body.outputs.end(), read);
  made.body = std::make_shared<const Graph>(inner.finish());
}

}  // namespace

Graph hoist_invariants(const Graph& step) {
  Rewrite rewrite = Rewrite::with_inputs(step);
  for (const Op& op : step.ops) {
    if (op.body) {
      hoist_loop(rewrite, op);
    } else {
      rewrite.copy(op);
    }
  }
  return rewrite.finish();
}

}  // namespace penstock
