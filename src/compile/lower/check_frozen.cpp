// SPDX-License-Identifier: Apache-2.0
// Frozen stages must read nothing that is trained. In a window their forwards for the next step stand in the rows of actors that wait
// (schedule/frozen_stages.cpp), on any actor, which then holds a copy of the parameters that they read.
#include <algorithm>
#include <ranges>
#include <set>

#include "base/text.h"
#include "lower/input.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The values of the step that are trained parameters, or made of one before the loop; each has the parameter, all others none. In a step
// that updates nothing those are trained of which it has the gradient.
IdVector<ValueId, ValueId> trained_of(const LowerInput& input) {
  const Graph& step = input.step;
  const std::set<std::string> outputs(step.output_names.begin(), step.output_names.end());
  const IdVector<ValueId, bool> depends = dependent_values(input);
  IdVector<ValueId, ValueId> out(step.values.size());
  for (std::int32_t s = 0; s < step.state; ++s)
    if (const ValueId state = step.inputs[s]; depends[step.outputs[s]] || outputs.contains("gradient:" + step.values[state].name))
      out[state] = state;
  for (std::size_t i = 0; i < input.loop; ++i)
    for (const ValueId operand : step.ops[i].operands)
      for (const ValueId result : step.ops[i].results)
        if (out[operand]) out[result] = out[operand];
  return out;
}

// Whether a forward of the stage stands ahead of work of an earlier step.
bool runs_ahead(const Schedule& schedule, std::int32_t stage) {
  const std::int32_t microbatches = schedule.step_microbatches();
  for (const std::vector<Action>& row : schedule.actors) {
    std::int32_t first = schedule.steps;  // step of what stands behind
    for (const Action& action : row | std::views::reverse) {
      const std::int32_t step = action.microbatch / microbatches;
      if (action.stage == stage && step > first) return true;
      first = std::min(first, step);
    }
  }
  return false;
}

}  // namespace

void check_frozen_stages(const LowerInput& input) {
  const Schedule& schedule = input.schedule;
  if (schedule.forward_times.empty()) return;
  const IdVector<ValueId, ValueId> trained = trained_of(input);
  const Op& loop = input.loop_op();
  IdVector<ValueId, ValueId> parameter(loop.body->values.size());
  for (std::size_t i = 0; i < loop.operands.size(); ++i) parameter[loop.body->inputs[i]] = trained[loop.operands[i]];
  for (std::int32_t stage = 0; stage < std::ssize(schedule.forward_times); ++stage) {
    // A stage without a backward may read what is trained if it runs in its own step: the first way of self-conditioning does.
    if (!input.dag.shape.has_backward[stage] && !runs_ahead(schedule, stage)) continue;
    for (const Op& op : loop.body->ops)
      for (const ValueId operand : op.operands)
        if (op.stage == input.dag.names[StageId(stage)] && parameter[operand])
          throw Error(concat("schedule ", schedule.name, ": stage ", stage, " is frozen, and its ", quote(op.name), " of ",
                             quote(op.origin.empty() ? "the model" : op.origin), " reads parameter ",
                             quote(input.step.values[parameter[operand]].name), ", which is trained"),
                      {"a frozen stage's forwards for the next step run before this step has updated its parameters"},
                      "let pipeline.frozen have a time for each of the model's frozen stages, which are in front, and for no other; or let "
                      "ParameterSpec::trained be false");
  }
}

}  // namespace penstock
