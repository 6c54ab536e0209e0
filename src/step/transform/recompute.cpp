// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "ops/definition.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

constexpr std::size_t kUnneeded = std::numeric_limits<std::size_t>::max();

// The facts about each op that are looked up.
struct Again {
  IdVector<ValueId, OpId> producer;
  IdVector<OpId, bool> ops;  // whether it is computed again

  // The op whose copy makes the value for a reader of this stage; none: what the forward made is read.
  OpId source(const Graph& body, ValueId value, const std::string& stage) const {
    const OpId from = producer[value];
    return from && ops[from] && body.ops[from].stage == stage ? from : OpId();
  }
};

Again find_again(const Graph& body, const std::function<bool(const Op&)>& again) {
  Again out{producers(body), IdVector<OpId, bool>(body.ops.size())};
  for (const OpId i : body.ops.ids()) {
    const Op& op = body.ops[i];
    if (op.phase == Phase::forward) out.ops[i] = again(op) || (is_view(op) && out.source(body, op.operands[0], op.stage));
  }
  return out;
}

// Per op, the first backward op that needs its copy (kUnneeded: none). An op's copy is needed no later than the copies that read it.
std::vector<std::size_t> first_needs(const Graph& body, const Again& again) {
  std::vector<std::size_t> needed(body.ops.size(), kUnneeded);
  for (std::size_t i = body.ops.size(); i-- > 0;) {
    const Op& op = body.ops[i];
    const std::size_t at = op.phase == Phase::backward ? i : needed[i];
    if (at == kUnneeded) continue;
    for (const ValueId operand : op.operands)
      if (const OpId from = again.source(body, operand, op.stage)) needed[from.index()] = std::min(needed[from.index()], at);
  }
  return needed;
}

}  // namespace

Graph recompute(const Graph& body, const std::function<bool(const Op&)>& wanted) {
  const Again again = find_again(body, wanted);
  const std::vector<std::size_t> needed = first_needs(body, again);
  std::vector<std::vector<std::size_t>> copies_before(body.ops.size());
  for (std::size_t i = 0; i < needed.size(); ++i)
    if (needed[i] != kUnneeded) copies_before[needed[i]].push_back(i);

  Rewrite rewrite = Rewrite::with_inputs(body);
  IdVector<ValueId, ValueId> copy(body.values.size());  // the copy of each value; none where there is none
  // Appends the op as one of the backward, which reads copies of the same stage's forward values where there are any.
  const auto append = [&](const Op& op) -> Op& {
    Op& made = rewrite.graph.ops.emplace_back(op);
    made.phase = Phase::backward;
    made.attributes.erase(kRecompute);
    for (ValueId& operand : made.operands) operand = again.source(body, operand, op.stage) ? copy[operand] : rewrite[operand];
    return made;
  };
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    for (const std::size_t j : copies_before[i]) {
      for (ValueId& result : append(body.ops[j]).results) result = copy[result] = rewrite.fresh(result);
    }
    if (body.ops[i].phase == Phase::forward) {
      rewrite.copy(body.ops[i]).attributes.erase(kRecompute);
    } else {
      for (ValueId& result : append(body.ops[i]).results) result = rewrite[result] = rewrite.fresh(result);
    }
  }
  return rewrite.finish();
}

}  // namespace penstock
