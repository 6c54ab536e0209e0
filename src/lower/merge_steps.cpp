#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "lower/joining.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

// The run with the joined draft's numbers.
PlacedRun placed(const Joining& j, const Run& run, std::int32_t step) {
  PlacedRun out{run, step, {step}};
  if (run.opcode == Opcode::run) out.run.task = j.tasks[step][run.task];
  for (InstanceId& read : out.run.reads) read = j.instances[step][read];
  for (Write& write : out.run.writes) write.instance = j.instances[step][write.instance];
  if (run.unit) out.run.unit.microbatch += step * j.input.microbatches;
  const auto outputs = static_cast<std::int32_t>(j.input.step.outputs.size()) - j.input.step.state;
  if (run.opcode == Opcode::output) out.run.port += step * outputs;
  return out;
}

// Whether what the run writes, whose instances are the joined draft's, becomes the next value of a trained state.
bool goes_into_states(const Joining& j, const Run& run) {
  return std::ranges::any_of(run.writes,
                             [&](const Write& write) { return j.is_trained(write.instance) || j.into_states.contains(write.instance); });
}

// Behind the last run of an action.
std::size_t end_of_actions(const std::vector<Run>& row) {
  const auto is_action = [](const Run& run) { return run.action >= 0; };
  return static_cast<std::size_t>(std::find_if(row.rbegin(), row.rend(), is_action).base() - row.begin());
}

// The end of a step on a device, behind its last action: what needs no other actor; what next values of states are made of, which waits for
// others until the step is drained; and what follows on others besides, which comes when the window's actions are done, so that no step
// waits for the end of the one before. `idle`: the device has no action of the step.
struct Ends {
  std::vector<PlacedRun> now, drained, later;
};
Ends ends_of(const Joining& j, std::vector<PlacedRun> runs, ActorId device, bool idle) {
  Ends out;
  std::set<InstanceId> late;
  for (PlacedRun& end : runs) {
    const bool waits = idle || end.run.opcode == Opcode::output || std::ranges::any_of(end.run.reads, [&](InstanceId i) {
                         const Instance& read = j.draft.instances[i];
                         return late.contains(i) || (read.source == Instance::Source::computed && read.home != device);
                       });
    if (waits)
      for (const Write& write : end.run.writes) late.insert(write.instance);
    (!waits ? out.now : goes_into_states(j, end.run) ? out.drained : out.later).push_back(std::move(end));
  }
  return out;
}

// The name of a state that the runs update; empty: they only help others to.
std::string updated_by(const Joining& j, const std::vector<PlacedRun>& runs) {
  for (const PlacedRun& placed : runs)
    for (const Write& write : placed.run.writes)
      if (j.is_trained(write.instance)) return j.draft.instances[write.instance].name;
  return {};
}

// One device's runs in the making.
struct Row {
  std::vector<PlacedRun> runs{}, later{};
  std::vector<std::vector<PlacedRun>> drained{};  // by step
};

void end_step(Joining& j, std::vector<PlacedRun> behind, ActorId device, std::int32_t step, bool idle, Row& row) {
  Ends ends = ends_of(j, std::move(behind), device, idle);
  if (const std::string state = updated_by(j, ends.drained); !state.empty())
    require_drained(j, concat("an update of ", quote(state), " waits for other actors, whose gradients it or the norm that clips it sums"));
  std::ranges::move(ends.now, std::back_inserter(row.runs));
  std::ranges::move(ends.later, std::back_inserter(row.later));
  row.drained[step] = std::move(ends.drained);
}

}  // namespace

void note_into_states(Joining& j, const Draft& from, std::int32_t step) {
  for (bool grows = true; grows;) {
    grows = false;
    for (const std::vector<Run>& runs : from.actors)
      for (std::size_t r = runs.size(); r-- > end_of_actions(runs);) {
        const PlacedRun joined = placed(j, runs[r], step);
        if (!goes_into_states(j, joined.run)) continue;
        for (const InstanceId read : joined.run.reads)
          if (j.draft.instances[read].source == Instance::Source::computed) grows |= j.into_states.insert(read).second;
      }
  }
}

void require_drained(Joining& j, const std::string& what) {
  if (j.is_drained) return;
  if (j.input.options.distance >= 0)
    throw Error(concat("pipeline.distance = ", j.input.options.distance, " is of workers that update by themselves, and ", what), {},
                "set train.clip = 0, and use parameters that one stage reads (--set model.tied=0)");
  check_drained(j.input.schedule, j.input.dag.shape, what);
  j.is_drained = true;
}

std::vector<PlacedRun> merged_row(Joining& j, const std::vector<Draft>& drafts, ActorId actor, ActorId device) {
  const std::vector<Action>& actions = j.input.schedule.actors[actor.value];
  const std::vector<ReadVersion>& versions = j.versions[actor.value];
  const std::int32_t microbatches = j.input.schedule.step_microbatches();
  std::vector<std::size_t> taken(drafts.size());
  std::vector<std::int32_t> done(drafts.size()), left(drafts.size());  // actions of each step
  for (const Action& action : actions) ++left[action.microbatch / microbatches];
  Row out{.drained = std::vector<std::vector<PlacedRun>>(drafts.size())};
  std::int32_t ended = 0;  // steps
  const auto drain = [&](std::int32_t before) {
    for (; ended < before; ++ended) std::ranges::move(out.drained[ended], std::back_inserter(out.runs));
  };
  const auto end = [&](std::int32_t step) {
    std::vector<PlacedRun> behind;
    const std::vector<Run>& row = drafts[step].actors[device];
    for (std::size_t& at = taken[step]; at < row.size(); ++at) behind.push_back(placed(j, row[at], step));
    end_step(j, std::move(behind), device, step, /*idle=*/left[step] == 0, out);
  };
  for (std::int32_t step = 0; step < j.steps(); ++step)
    if (left[step] == 0) end(step);
  for (std::size_t a = 0; a < actions.size(); ++a) {
    drain(j.needs[actor.value][a].step);
    const std::int32_t step = actions[a].microbatch / microbatches, number = done[step]++;
    const std::vector<Run>& row = drafts[step].actors[device];
    // Its runs, what stands before the step's first, and behind them what belongs to no action.
    const std::size_t last = end_of_actions(row);
    for (std::size_t& at = taken[step]; at < last && row[at].action <= number; ++at) {
      PlacedRun next = placed(j, row[at], step);
      if (row[at].action == number && reads_parameters(actions[a].kind)) next.read = versions[a];
      out.runs.push_back(std::move(next));
    }
    if (done[step] == left[step]) end(step);
  }
  drain(j.steps());
  std::ranges::stable_sort(out.later, {}, &PlacedRun::step);
  std::ranges::move(out.later, std::back_inserter(out.runs));
  return std::move(out.runs);
}

}  // namespace penstock
