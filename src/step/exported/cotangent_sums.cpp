// SPDX-License-Identifier: Apache-2.0
#include "exported/cotangent_sums.h"

#include <algorithm>

#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

bool is_backward(const Graph& graph, const IdVector<ValueId, OpId>& made_by, ValueId value) {
  return made_by[value] && graph.ops[made_by[value]].phase == Phase::backward;
}

// An addition of two backward values of one type.
bool is_sum(const Graph& graph, const IdVector<ValueId, OpId>& made_by, const Op& op) {
  return op.name == "add" && op.phase == Phase::backward && op.attributes.empty() && op.operands.size() == 2 &&
         std::ranges::all_of(op.operands, [&](ValueId operand) {
           return graph.type(operand) == graph.type(op.results[0]) && is_backward(graph, made_by, operand);
         });
}

}  // namespace

Graph join_cotangent_sums(const Graph& joint) {
  const IdVector<ValueId, OpId> made_by = producers(joint);
  const IdVector<ValueId, int> uses = use_counts(joint);
  IdVector<ValueId, int> as_output(joint.values.size());
  for (ValueId output : joint.outputs) ++as_output[output];
  IdVector<OpId, std::vector<ValueId>> terms(joint.ops.size());  // of the sums
  IdVector<OpId, bool> inside(joint.ops.size());                 // sums that are terms of another
  for (const OpId i : joint.ops.ids()) {
    const Op& op = joint.ops[i];
    if (!is_sum(joint, made_by, op)) continue;
    for (ValueId operand : op.operands) {
      const OpId inner = made_by[operand];
      inside[inner] = !terms[inner].empty() && uses[operand] == 1;
      const std::vector<ValueId> own = {operand};
      const std::vector<ValueId>& added = inside[inner] ? terms[inner] : own;
      terms[i].insert(terms[i].end(), added.begin(), added.end());
    }
  }
  Rewrite out = Rewrite::with_inputs(joint);
  for (const OpId i : joint.ops.ids()) {
    if (inside[i]) continue;
    Op op = joint.ops[i];
    if (!terms[i].empty()) {
      op.name = "add_n";
      op.operands = terms[i];
      if (uses[op.results[0]] == as_output[op.results[0]]) op.sequence = -1;
    }
    out.copy(op);
  }
  return out.finish();
}

}  // namespace penstock
