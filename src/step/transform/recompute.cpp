#include <algorithm>
#include <limits>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

constexpr std::size_t kUnneeded = std::numeric_limits<std::size_t>::max();

using Stages = std::set<std::string, std::less<>>;

void check_stages(const Graph& body, const Stages& wanted) {
  Stages known;
  for (const Op& op : body.ops)
    if (!op.stage.empty()) known.insert(op.stage);
  const std::vector<std::string> names(known.begin(), known.end());
  for (const std::string& stage : wanted) {
    if (known.contains(stage)) continue;
    throw Error(concat("recompute names stage ", quote(stage), ", which the model does not have"), {"its stages: " + join(names, ", ")},
                did_you_mean(stage, names));
  }
}

// Per op, the first backward op that needs its copy (kUnneeded: none). An op's copy is needed no later than the copies that read it.
std::vector<std::size_t> first_needs(const Graph& body, const Stages& stages, const IdVector<ValueId, OpId>& producer) {
  IdVector<OpId, std::size_t> needed(body.ops.size(), kUnneeded);
  for (std::size_t i = body.ops.size(); i-- > 0;) {
    const Op& op = body.ops[i];
    const std::size_t at = op.phase == Phase::backward && stages.contains(op.stage) ? i : needed[i];
    if (at == kUnneeded) continue;
    for (ValueId operand : op.operands) {
      const OpId from = producer[operand];
      if (!from || body.ops[from].phase == Phase::backward || body.ops[from].stage != op.stage) continue;
      needed[from] = std::min(needed[from], at);
    }
  }
  return needed;
}

}  // namespace

Graph recompute(const Graph& body, const std::vector<std::string>& stages) {
  const Stages wanted(stages.begin(), stages.end());
  check_stages(body, wanted);
  const IdVector<ValueId, OpId> producer = producers(body);
  const std::vector<std::size_t> needed = first_needs(body, wanted, producer);
  std::vector<std::vector<std::size_t>> copies_before(body.ops.size());
  for (std::size_t i = 0; i < needed.size(); ++i)
    if (needed[i] != kUnneeded) copies_before[needed[i]].push_back(i);

  Rewrite rewrite = Rewrite::with_inputs(body);
  IdVector<ValueId, ValueId> copy(body.values.size());  // the copy of each value; none where there is none
  // Appends the op as a copy that reads copies of the same stage's forward values where there are any.
  const auto append = [&](const Op& op) {
    Op& made = rewrite.graph.ops.emplace_back(op);
    made.phase = Phase::backward;
    for (ValueId& operand : made.operands) {
      const OpId from = producer[operand];
      const bool copied = copy[operand] && body.ops[from].stage == op.stage;
      operand = copied ? copy[operand] : rewrite[operand];
    }
  };
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    for (std::size_t j : copies_before[i]) {
      append(body.ops[j]);
      for (ValueId& result : rewrite.graph.ops.back().results) result = copy[result] = rewrite.fresh(result);
    }
    if (body.ops[i].phase == Phase::forward) {
      rewrite.copy(body.ops[i]);
    } else {
      append(body.ops[i]);
      for (ValueId& result : rewrite.graph.ops.back().results) result = rewrite[result] = rewrite.fresh(result);
    }
  }
  return rewrite.finish();
}

}  // namespace penstock
