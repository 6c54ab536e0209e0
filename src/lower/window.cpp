#include "lower/window.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "lower/joining.h"
#include "lower/lookups_ahead.h"
#include "lower/waves.h"
#include "penstock/error.h"
#include "schedule/slices.h"
#include "schedule/work.h"

namespace penstock {
namespace {

// The states whose next values depend on the loop's results. Those of all others (how many steps there were) can be made ahead, or are
// what they were (frozen parameters).
IdVector<InputId, bool> trained_states(const LowerInput& input) {
  const IdVector<ValueId, bool> depends = dependent_values(input);
  IdVector<InputId, bool> out;
  for (std::int32_t s = 0; s < input.step.state; ++s) out.push_back(depends[input.step.outputs[s]]);
  return out;
}

// The loop's operand that is this port, cut into micro-batches; -1: none is.
std::int32_t cut_operand(const LowerInput& input, InputId port) {
  for (std::int32_t o = 0; o < attribute<std::int64_t>(input.loop_op(), "split"); ++o)
    if (input.input_of_operand(o) == port) return o;
  return -1;
}

// The loop's operands of which something reads a step's whole batch.
std::vector<std::int32_t> whole_ports(const LowerInput& input, const std::vector<Draft>& drafts) {
  std::set<std::int32_t> out;
  for (const Draft& draft : drafts)
    for (const Instance& instance : draft.instances)
      if (instance.source == Instance::Source::data && !instance.unit)
        if (const std::int32_t operand = cut_operand(input, instance.input); operand >= 0) out.insert(operand);
  return {out.begin(), out.end()};
}

// `whole`: of these operands each step has a port of its own, behind all others.
LowerInput window_input(const LowerInput& input, const std::vector<std::int32_t>& whole) {
  LowerInput out = input;
  const std::int32_t steps = input.schedule.steps;
  out.microbatches *= steps;
  if (!whole.empty()) out.first_port = InputId(input.step.inputs.size());
  for (std::int32_t step = 0; step < steps; ++step)
    for (const std::int32_t operand : whole) {
      const Value& port = input.step.values[input.loop_op().operands[operand]];
      out.step.add_input(port.type, concat(port.name, ".", step));
    }
  for (std::size_t i = input.step.state; i < input.step.inputs.size(); ++i)
    if (cut_operand(input, InputId(i)) >= 0) out.step.values[input.step.inputs[i]].type.shape[0] *= steps;
  const std::vector<std::string> names = input.step.output_names;
  const std::size_t states = input.step.state, outputs = input.step.outputs.size() - states;
  out.step.output_names.clear();
  for (std::int32_t step = 0; step < steps; ++step)
    for (std::size_t o = 0; o < outputs; ++o) {
      if (step > 0) out.step.outputs.push_back(input.step.outputs[states + o]);
      out.step.output_names.push_back(concat(o < names.size() ? names[o] : concat("output", o), ".", step));
    }
  return out;
}

void join_instances(Joining& j, const Draft& from, std::int32_t step) {
  IdVector<InstanceId, InstanceId>& to = j.instances.emplace_back();
  for (const Instance& instance : from.instances) {
    Instance made = instance;
    const bool is_whole = instance.source == Instance::Source::data && !instance.unit;
    const std::int32_t operand = is_whole ? cut_operand(j.input, instance.input) : -1;
    const bool is_shared = instance.source == Instance::Source::state || (is_whole && operand < 0);
    if (!is_shared) {
      if (operand >= 0) {
        const auto place = std::ranges::find(j.whole, operand) - j.whole.begin();
        made.input = InputId(j.input.step.inputs.size() + step * j.whole.size() + place);
      }
      if (made.unit) made.unit.microbatch += step * j.input.microbatches;
      made.name += concat("@", step);
      to.push_back(add(j.draft, std::move(made)));
      continue;
    }
    InstanceId& found = j.shared[{instance.name, instance.home}];
    if (!found) found = add(j.draft, std::move(made));
    to.push_back(found);
  }
}

void join_tasks(Joining& j, const Draft& from) {
  IdVector<TaskId, TaskId>& to = j.tasks.emplace_back();
  for (const Task& task : from.tasks) to.push_back(add_task(j.draft, task.name, task.graph));
}

// Trained states by the stages that read them, numbered by their first slices, and those that other devices than their owner read.
using Readers = std::map<InstanceId, std::set<std::int32_t>>;
void note_readers(Joining& j, const Draft& from, std::int32_t step, Readers& readers) {
  for (const ActorId device : from.actors.ids())
    for (const Run& run : from.actors[device])
      for (const InstanceId read : run.reads) {
        const InstanceId joined = j.instances[step][read];
        if (!j.is_trained(joined)) continue;
        if (run.stage) readers[joined].insert(first_slice(run.stage.value, j.input.schedule));
        if (j.draft.instances[joined].home != device) j.copied[joined];
      }
  for (const InstanceId state : from.refreshed)
    if (const InstanceId joined = j.instances[step][state]; std::ranges::find(j.draft.refreshed, joined) == j.draft.refreshed.end())
      j.draft.refreshed.push_back(joined);
}

// A state that one stage alone reads elsewhere is read by its W, and its update waits for these anyway.
void check_readers(Joining& j, const Readers& readers) {
  for (const auto& [state, versions] : j.copied)
    if (const auto found = readers.find(state); found == readers.end() || found->second.size() > 1)
      require_drained(j, concat(quote(j.draft.instances[state].name), " is read by stages on several actors, and each update is for all"));
}

void note_versions(Joining& j, const std::vector<PlacedRun>& row, ActorId device) {
  for (const PlacedRun& placed : row)
    for (const InstanceId read : placed.run.reads)
      if (const auto found = j.copied.find(read); found != j.copied.end() && j.draft.instances[read].home != device)
        found->second.insert(placed.read.version);
}

// Workers leave out the sums of their gradients where these are read (waves.h), which is known where they are made.
void check_workers(const LowerInput& input) {
  const Schedule& schedule = input.schedule;
  const std::vector<std::int32_t> owners = actor_of_stage(schedule);
  for (std::int32_t actor = 0; input.options.distance >= 0 && actor < input.actors(); ++actor)
    for (std::int32_t i = 0; const Action& action : schedule.actors[actor]) {
      if (action.kind == Kind::W && owners[action.stage] != actor)
        throw Error(
            concat(place(schedule, {actor, i}), ": ", text(action, schedule.slices, schedule.blocks), " is on actor ", actor,
                   ", its forward on actor ", owners[action.stage]),
            {concat("pipeline.distance = ", input.options.distance, " is of workers, whose actors sum their own stages' gradients")},
            concat("move it to row ", owners[action.stage] + 1, ", or set pipeline.distance = -1"));
      ++i;
    }
}

// All steps read one part of the data alike: the seed.
void check_ports(const LowerInput& input) {
  const IdVector<ValueId, int> uses = use_counts(input.step);
  for (std::size_t i = input.step.state; i < input.step.inputs.size(); ++i) {
    const Value& port = input.step.values[input.step.inputs[i]];
    if (cut_operand(input, InputId(i)) >= 0 || uses[input.step.inputs[i]] == 0 || port.name == "seed") continue;
    throw Error(concat("schedule ", input.schedule.name, ": port ", quote(port.name), " is of a whole step, and the table of ",
                       input.schedule.steps),
                {"in a window of steps data come by micro-batch"}, "use a table for one step");
  }
}

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
  if (window.options.sharding.level >= 2) out.schedule = with_gathers(std::move(out.schedule), /*turns=*/true);
  out.options.window = true;
  return out;
}

JoinedSteps join_steps(const LowerInput& window, const std::vector<Draft>& drafts) {
  Joining j{window, whole_ports(window, drafts), trained_states(window), read_versions(window.schedule),
            first_needs(window.schedule, window.dag.shape)};
  j.draft.blocks = drafts[0].blocks;
  j.draft.sharded_states = drafts[0].sharded_states;
  j.draft.sharded_results = drafts[0].sharded_results;
  j.draft.groups = drafts[0].groups;
  j.draft.after = drafts[0].after;
  Readers readers;
  for (std::int32_t step = 0; step < j.steps(); ++step) {
    join_instances(j, drafts[step], step);
    join_tasks(j, drafts[step]);
    note_readers(j, drafts[step], step, readers);
    note_into_states(j, drafts[step], step);
  }
  check_readers(j, readers);
  check_workers(window);
  check_ports(window);
  const IdVector<ValueId, OpId> producer = producers(window.step);
  IdVector<ActorId, std::vector<PlacedRun>> rows;  // of devices
  for (const ActorId actor : ids<ActorId>(window.actors()))
    for (std::int32_t d = 0; d < window.devices(actor); ++d) {
      const ActorId device(rows.size());
      std::vector<PlacedRun> row = merged_row(j, drafts, actor, device);
      if (window.options.distance >= 0 && window.devices(actor) > 1) row = in_waves(window, j.trained, std::move(row), device, j.draft);
      make_untrained_ahead(j, row, device, producer);
      note_versions(j, row, device);
      rows.push_back(std::move(row));
    }
  for (const ActorId device : rows.ids()) {
    std::vector<Run> runs = with_versions(j, std::move(rows[device]), device, producer);
    if (window.options.prefetch) look_up_ahead(window, runs, device, j.draft);
    j.draft.actors.push_back(std::move(runs));
  }
  return {window_input(window, j.whole), std::move(j.draft)};
}

}  // namespace penstock
