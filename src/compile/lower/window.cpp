// SPDX-License-Identifier: Apache-2.0
#include "lower/window.h"

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/drained.h"
#include "schedule/work.h"

namespace penstock {
namespace {

// The table of step `step` with the versions that the window's says of its actions: what is gathered for one is not for another.
Schedule with_reads(Schedule of_step, const Schedule& window, std::int32_t step) {
  const std::vector<std::vector<ReadVersion>> versions = read_versions(window);
  const std::int32_t microbatches = window.step_microbatches();
  for (std::size_t actor = 0; actor < versions.size(); ++actor)
    for (std::size_t a = 0, next = 0; a < versions[actor].size(); ++a) {
      if (window.actors[actor][a].microbatch / microbatches != step) continue;
      Action& action = of_step.actors[actor][next++];
      action.version = versions[actor][a].version;
      action.ahead = versions[actor][a].ahead;
    }
  return of_step;
}

}  // namespace

LowerInput step_input(const LowerInput& window, std::int32_t step) {
  LowerInput out = window;
  for (const std::int32_t actor : actor_of_stage(window.schedule)) out.owner_of_stage.push_back(ActorId(actor));
  out.schedule = with_reads(one_step(window.schedule, step), window.schedule, step);
  if (window.options.zero >= 2) out.schedule = with_gathers(std::move(out.schedule), /*turns=*/true);
  out.is_step = true;
  return out;
}

LowerInput window_input(const LowerInput& window, const std::vector<std::int32_t>& whole_ports) {
  LowerInput out = window;
  const Graph& step = window.step;
  const std::int32_t steps = window.schedule.steps;
  out.microbatches *= steps;
  if (!whole_ports.empty()) out.first_port = InputId(step.inputs.size());
  for (std::int32_t s = 0; s < steps; ++s)
    for (const std::int32_t input : whole_ports) {
      const Value& port = step.values[step.inputs[input]];
      out.step.add_input(port.type, concat(port.name, ".", s));
    }
  for (std::size_t i = step.state; i < step.inputs.size(); ++i)
    if (cut_operand(window, InputId(i)) >= 0) out.step.values[step.inputs[i]].type.shape[0] *= steps;
  const std::vector<std::string> names = step.output_names;
  const std::size_t states = step.state, outputs = step.outputs.size() - states;
  out.step.output_names.clear();
  for (std::int32_t s = 0; s < steps; ++s)
    for (std::size_t o = 0; o < outputs; ++o) {
      if (s > 0) out.step.outputs.push_back(step.outputs[states + o]);
      out.step.output_names.push_back(concat(o < names.size() ? names[o] : concat("output", o), ".", s));
    }
  return out;
}

IdVector<InputId, bool> trained_states(const LowerInput& input) {
  const IdVector<ValueId, bool> depends = dependent_values(input);
  IdVector<InputId, bool> out;
  for (std::int32_t s = 0; s < input.step.state; ++s) out.push_back(depends[input.step.outputs[s]]);
  return out;
}

void check_window_drained(const LowerInput& window, const std::string& what) {
  if (window.options.distance >= 0)
    throw Error(concat("pipeline.distance = ", window.options.distance, " is of workers that update by themselves, and ", what), {},
                "set train.clip = 0, and use parameters that one stage reads (--set model.tied=0)");
  check_drained(window.schedule, window.dag.shape, what);
}

std::int32_t cut_operand(const LowerInput& input, InputId port) {
  for (std::int32_t o = 0; o < attribute<std::int64_t>(input.loop_op(), "split"); ++o)
    if (input.input_of_operand(o) == port) return o;
  return -1;
}

}  // namespace penstock
