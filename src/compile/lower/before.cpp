// SPDX-License-Identifier: Apache-2.0
// Pass: what the loop reads and does not depend on it becomes one task on each actor that reads it, ahead of all others.
#include <map>

#include "base/text.h"
#include "lower/fragment.h"
#include "lower/passes.h"

namespace penstock {
namespace {

// The part of one micro-batch.
ValueId part_of(const LowerInput& input, Graph& graph, ValueId whole, Unit unit) {
  TensorType part = graph.type(whole);
  part.shape[0] /= input.microbatches;
  Op slice;
  slice.name = "slice";
  slice.operands = {whole};
  slice.attributes = {{"dim", std::int64_t{0}},
                      {"start", unit.microbatch * part.shape[0]},
                      {"end", (unit.microbatch + 1) * part.shape[0]},
                      {"step", std::int64_t{1}}};
  slice.results = {graph.add_value(part)};
  graph.ops.push_back(slice);
  return slice.results[0];
}

}  // namespace

void build_before(const LowerInput& input, Draft& draft) {
  for (std::int32_t s = 0; s < input.step.state; ++s) input_instance(input, draft, InputId(s));  // whoever reads it
  const IdVector<ValueId, OpId> producer = producers(input.step);
  std::map<ActorId, std::vector<LoopUse>> uses;
  for (const LoopUse& use : draft.uses) uses[use.actor].push_back(use);
  for (const auto& [actor, list] : uses) {
    Fragment fragment(input.step, producer);
    const FindInstance find = [&](ValueId v) -> std::optional<InstancePart> {
      const InputId from = input.input_of[v];
      if (!from) return std::nullopt;
      return InstancePart{input_instance(input, draft, from), 0};
    };
    Run run;
    for (const LoopUse& use : list) {
      const ValueId whole = fragment.need(draft, input.loop_op().operands[use.operand], find);
      fragment.graph.outputs.push_back(use.unit ? part_of(input, fragment.graph, whole, use.unit) : whole);
      run.writes.push_back({use.instance});
    }
    run.reads = fragment.reads;
    run.task = add_task(draft, concat("before.", actor.value), std::move(fragment.graph));
    draft.actors[actor].insert(draft.actors[actor].begin(), std::move(run));
  }
}

}  // namespace penstock
