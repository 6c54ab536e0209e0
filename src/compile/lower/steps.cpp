// SPDX-License-Identifier: Apache-2.0
// Pass: the drafts of a window's steps become one, on one set of states: each device's runs of all steps stand in the order of the table's
// row, and each run knows its step and the version of the trained states that it reads.
//
// Some runs that a step has behind its last action wait for other actors. Those that no next state is made of (the norm that is reported)
// come at the window's end. Those that update a state (clipped by the norm of all gradients, or read by several stages) come where the step
// is drained: first_needs() says of each action the first step that needs it, which never falls along a row, so each row is cut between the
// actions that step k needs and the rest, and what waits stands at the cut. All that it waits for is ahead of the cut in every row, as long
// as none of that reads the update; a table of which this is not so is refused.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/text.h"
#include "lower/passes.h"
#include "lower/window.h"
#include "penstock/error.h"
#include "schedule/drained.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {
namespace {

using HomedName = std::pair<std::string, ActorId>;

struct Joining {
  const LowerInput& input;          // of the window
  const std::vector<Draft>& steps;  // the drafts of its steps
  IdVector<InputId, bool> trained;
  std::vector<std::vector<ReadVersion>> versions;  // read_versions of the table
  std::vector<std::vector<FirstNeed>> needs;       // first_needs of the table
  Draft draft{};
  std::vector<Renumbering> taken{};          // by step
  std::map<HomedName, InstanceId> shared{};  // what all steps have
  std::set<InstanceId> into_states{};        // that behind a step's last action next values of trained states are made of
  bool is_drained = false;                   // check_drained has nothing against the table

  bool is_trained(InstanceId i) const {
    const Instance& instance = draft.instances[i];
    return instance.source == Instance::Source::state && trained[instance.input];
  }
};

// The step's inputs of which something reads what a whole step is given. The seed is the run's: all steps read it alike.
std::vector<std::int32_t> whole_ports(const LowerInput& input, const std::vector<Draft>& steps) {
  std::set<std::int32_t> out;
  for (const Draft& draft : steps)
    for (const Instance& instance : draft.instances)
      if (instance.source == Instance::Source::data && !instance.unit && input.step.values[input.value(instance.input)].name != "seed")
        out.insert(instance.input.value);
  return {out.begin(), out.end()};
}

// The instance as the window has it; `is_shared`: all steps do.
Instance in_window(const Joining& j, Instance instance, std::int32_t step, bool& is_shared) {
  const std::vector<std::int32_t>& whole = j.draft.whole_ports;
  const bool is_whole = instance.source == Instance::Source::data && !instance.unit;
  const auto port = is_whole ? std::ranges::find(whole, instance.input.value) : whole.end();
  is_shared = instance.source == Instance::Source::state || (is_whole && port == whole.end());
  if (is_shared) return instance;
  if (is_whole) instance.input = InputId(j.input.step.inputs.size() + step * whole.size() + (port - whole.begin()));
  if (instance.unit) instance.unit.microbatch += step * j.input.microbatches;
  instance.name += concat("@", step);
  return instance;
}

void take_step(Joining& j, std::int32_t step) {
  Renumbering& taken = j.taken.emplace_back();
  for (const Instance& instance : j.steps[step].instances) {
    bool is_shared = false;
    Instance made = in_window(j, instance, step, is_shared);
    InstanceId unshared;
    InstanceId& found = is_shared ? j.shared[{made.name, made.home}] : unshared;
    if (!found) found = add(j.draft, std::move(made));
    taken.instances.push_back(found);
  }
  for (const Task& task : j.steps[step].tasks) taken.tasks.push_back(add_task(j.draft, task.name, task.graph));
  for (const InstanceId state : j.steps[step].refreshed)
    if (const InstanceId joined = taken.instances[state]; std::ranges::find(j.draft.refreshed, joined) == j.draft.refreshed.end())
      j.draft.refreshed.push_back(joined);
}

// The run as the window has it.
Run in_window(const Joining& j, Run run, std::int32_t step) {
  renumber(run, j.taken[step]);
  run.window = {.step = step, .read = {step}};
  if (run.unit) run.unit.microbatch += step * j.input.microbatches;
  const auto outputs = static_cast<std::int32_t>(j.input.step.outputs.size()) - j.input.step.state;
  if (run.opcode == Opcode::output) run.port += step * outputs;
  return run;
}

// Whether what the run writes, whose instances are the joined draft's, becomes the next value of a trained state.
bool goes_into_states(const Joining& j, const Run& run) {
  return std::ranges::any_of(run.writes,
                             [&](const Write& write) { return j.is_trained(write.instance) || j.into_states.contains(write.instance); });
}

// Behind the last run of an action.
std::size_t end_of_actions(const std::vector<Run>& row) {
  const auto is_action = [](const Run& run) { return run.window.action >= 0; };
  return static_cast<std::size_t>(std::find_if(row.rbegin(), row.rend(), is_action).base() - row.begin());
}

// The end of a step on a device, behind its last action: what needs no other actor; what next values of states are made of, which waits for
// others until the step is drained; and what follows on others besides, which comes when the window's actions are done, so that no step
// waits for the end of the one before. `idle`: the device has no action of the step.
struct Ends {
  std::vector<Run> now, drained, later;
};
Ends ends_of(const Joining& j, std::vector<Run> runs, ActorId device, bool idle) {
  Ends out;
  std::set<InstanceId> late;
  for (Run& end : runs) {
    const bool waits = idle || end.opcode == Opcode::output || std::ranges::any_of(end.reads, [&](InstanceId i) {
                         const Instance& read = j.draft.instances[i];
                         return late.contains(i) || (read.source == Instance::Source::computed && read.home != device);
                       });
    if (waits)
      for (const Write& write : end.writes) late.insert(write.instance);
    (!waits ? out.now : goes_into_states(j, end) ? out.drained : out.later).push_back(std::move(end));
  }
  return out;
}

// The name of a state that the runs update; empty: they only help others to.
std::string updated_by(const Joining& j, const std::vector<Run>& runs) {
  for (const Run& run : runs)
    for (const Write& write : run.writes)
      if (j.is_trained(write.instance)) return j.draft.instances[write.instance].name;
  return {};
}

// One device's runs in the making.
struct MergedRow {
  ActorId device;
  std::vector<Run> runs{}, later{};
  std::vector<std::vector<Run>> drained{};  // by step
};

// Throws Error unless updates may wait for other actors. `what`: does, as the error's second line.
void require_drained(Joining& j, const std::string& what) {
  if (j.is_drained) return;
  check_window_drained(j.input, what);
  j.is_drained = true;
}

void end_step(Joining& j, std::vector<Run> behind, std::int32_t step, bool idle, MergedRow& row) {
  Ends ends = ends_of(j, std::move(behind), row.device, idle);
  if (const std::string state = updated_by(j, ends.drained); !state.empty())
    require_drained(j, concat("an update of ", quote(state), " waits for other actors, whose gradients it or the norm that clips it sums"));
  std::ranges::move(ends.now, std::back_inserter(row.runs));
  std::ranges::move(ends.later, std::back_inserter(row.later));
  row.drained[step] = std::move(ends.drained);
}

// Notes what of this step next values of trained states are made of behind its last actions.
void note_into_states(Joining& j, std::int32_t step) {
  for (bool grows = true; grows;) {
    grows = false;
    for (const std::vector<Run>& runs : j.steps[step].actors)
      for (std::size_t r = runs.size(); r-- > end_of_actions(runs);) {
        const Run joined = in_window(j, runs[r], step);
        if (!goes_into_states(j, joined)) continue;
        for (const InstanceId read : joined.reads)
          if (j.draft.instances[read].source == Instance::Source::computed) grows |= j.into_states.insert(read).second;
      }
  }
}

// The runs of one device in the order of the table's row. What an update waits for stands where its step is drained: ahead of what no
// action of the step needs. Throws Error where something waits in a table that is not drained.
std::vector<Run> merged_row(Joining& j, ActorId actor, ActorId device) {
  const std::vector<Action>& actions = j.input.schedule.actors[actor.value];
  const std::vector<ReadVersion>& versions = j.versions[actor.value];
  const std::int32_t microbatches = j.input.schedule.step_microbatches();
  std::vector<std::size_t> taken(j.steps.size());
  std::vector<std::int32_t> done(j.steps.size()), left(j.steps.size());  // actions of each step
  for (const Action& action : actions) ++left[action.microbatch / microbatches];
  MergedRow out{.device = device, .drained = std::vector<std::vector<Run>>(j.steps.size())};
  std::int32_t ended = 0;  // steps
  const auto drain = [&](std::int32_t before) {
    for (; ended < before; ++ended) std::ranges::move(out.drained[ended], std::back_inserter(out.runs));
  };
  const auto end = [&](std::int32_t step) {
    std::vector<Run> behind;
    const std::vector<Run>& row = j.steps[step].actors[device];
    for (std::size_t& at = taken[step]; at < row.size(); ++at) behind.push_back(in_window(j, row[at], step));
    end_step(j, std::move(behind), step, /*idle=*/left[step] == 0, out);
  };
  for (std::int32_t step = 0; step < std::ssize(j.steps); ++step)
    if (left[step] == 0) end(step);
  for (std::size_t a = 0; a < actions.size(); ++a) {
    drain(j.needs[actor.value][a].step);
    const std::int32_t step = actions[a].microbatch / microbatches, number = done[step]++;
    const std::vector<Run>& row = j.steps[step].actors[device];
    // Its runs, what stands before the step's first, and behind them what belongs to no action.
    const std::size_t last = end_of_actions(row);
    for (std::size_t& at = taken[step]; at < last && row[at].window.action <= number; ++at) {
      Run next = in_window(j, row[at], step);
      if (row[at].window.action == number && reads_parameters(actions[a].kind)) next.window.read = versions[a];
      out.runs.push_back(std::move(next));
    }
    if (done[step] == left[step]) end(step);
  }
  drain(j.input.schedule.steps);
  std::ranges::stable_sort(out.later, {}, [](const Run& run) { return run.window.step; });
  std::ranges::move(out.later, std::back_inserter(out.runs));
  return std::move(out.runs);
}

// Throws Error where several stages read a trained state elsewhere than where it is owned, in a window that is not drained. One stage alone
// is a W that reads it there, and its update waits for these anyway.
void check_readers(Joining& j) {
  std::map<InstanceId, std::set<std::int32_t>> readers;  // stages, numbered by their first slices
  std::set<InstanceId> elsewhere;
  for (std::int32_t step = 0; step < std::ssize(j.steps); ++step)
    for (const ActorId device : j.steps[step].actors.ids())
      for (const Run& run : j.steps[step].actors[device])
        for (const InstanceId own : run.reads) {
          const InstanceId read = j.taken[step].instances[own];
          if (!j.is_trained(read)) continue;
          if (run.stage) readers[read].insert(first_slice(run.stage.value, j.input.schedule));
          if (j.draft.instances[read].home != device) elsewhere.insert(read);
        }
  for (const InstanceId state : elsewhere)
    if (readers[state].size() != 1)
      require_drained(j, concat(quote(j.draft.instances[state].name), " is read by stages on several actors, and each update is for all"));
}

Draft joined(const LowerInput& input, const std::vector<Draft>& steps) {
  Joining j{input, steps, trained_states(input), read_versions(input.schedule), first_needs(input.schedule, input.dag.shape)};
  j.draft.of = steps[0].of;
  j.draft.blocks = steps[0].blocks;
  j.draft.sharded_states = steps[0].sharded_states;
  j.draft.sharded_results = steps[0].sharded_results;
  j.draft.groups = steps[0].groups;
  j.draft.whole_ports = whole_ports(input, steps);
  for (std::int32_t step = 0; step < std::ssize(steps); ++step) {
    take_step(j, step);
    note_into_states(j, step);
  }
  check_readers(j);
  for (const ActorId actor : ids<ActorId>(input.actors()))
    for (std::int32_t d = 0; d < input.devices(actor); ++d) j.draft.actors.push_back(merged_row(j, actor, ActorId(j.draft.actors.size())));
  return std::move(j.draft);
}

}  // namespace

void join_steps(Lowering& lowering) {
  for (TableDrafts& table : lowering) {
    if (table.steps.size() == 1) continue;
    Draft draft = joined(table.input, table.steps);
    table.input = window_input(table.input, draft.whole_ports);
    table.steps.clear();
    table.steps.push_back(std::move(draft));
  }
}

}  // namespace penstock
