// SPDX-License-Identifier: Apache-2.0
// Pass: HetPipe's waves (Park et al., 2005.14038, section 5). The devices of an actor are workers that update parameters of their own by
// their own gradients at once (sums of gradients that update states are not reduced), and take each other's updates a wave at a time. In
// the row of a device, behind the last update of wave c, stand for the states that a run updates,
//
//   delta   D[c] = W - what W was when the wave began
//   push    S[c] = all workers' D[c] summed
//   pull    of wave w = c - distance:  G = G + S[w],  W = G + D[w+1] + ... + D[c]
//
// and at the row's end the pulls that are left, so that all workers end with the same bits. G is what the server would have. Steps and
// versions (what a read of the table names) are those of the worker's own updates: the pull of wave w is part of its last update.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/passes.h"
#include "lower/window.h"
#include "ops/definition.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "penstock/optimiser.h"
#include "schedule/work.h"

namespace penstock {
namespace {

// States that one run updates and that are exchanged together, and what is kept of them in waves.
struct Waves {
  std::vector<InstanceId> states;
  std::vector<TensorType> types;
  std::int32_t group = -1;  // of the actor's devices
  StageId stage{};
  InstanceId server{}, begin{};              // G; W when the wave began
  std::vector<InstanceId> deltas{}, sums{};  // by wave
  std::int32_t pulled = 0;                   // waves
};

// The row of one device in the making. `trained`: by state; `producer`: of the step's values.
struct RowInWaves {
  const LowerInput& window;
  const IdVector<InputId, bool>& trained;
  const IdVector<ValueId, OpId>& producer;
  ActorId device;
  Draft& draft;
  std::int32_t step = 0;  // of the run that comes next
  std::vector<Run> runs{};
  std::set<InstanceId> unused{};  // what updates keep beside the parameters
};

// Whether the loop reads the state or an optimiser's op has it as what it updates. A member of an axis may update what another's loop
// reads.
bool is_parameter(const RowInWaves& row, InputId state) {
  const LowerInput& window = row.window;
  const std::vector<ValueId>& read = window.loop_op().operands;
  if (std::ranges::find(read, window.value(state)) != read.end()) return true;
  const ValueId next = window.step.outputs[state.index()];
  const OpId made = row.producer[next];
  return made && is_update(window.step.ops[made]) && window.step.ops[made].results[0] == next;
}

bool can_forget(const OptimiserInfo& optimiser) {
  return optimiser.fused && !find_op(optimiser.fused->op)->update->momentum.empty();
}

// Throws unless the state is what an update keeps that no parameter depends on (of sgd without momentum, its last gradient).
void check_unused(const RowInWaves& row, const Instance& state) {
  const LowerInput& window = row.window;
  if (const OpId made = row.producer[window.step.outputs[state.input.index()]])
    if (forgets(window.step.ops[made])) return;
  throw Error(concat("schedule ", window.schedule.name, ": workers sum their updates, and ", quote(state.name), " is no parameter"),
              {"what an optimiser keeps beside the parameters would be another on each worker"},
              concat("set train.momentum = 0 and an optimiser that then keeps nothing that counts (", optimisers_where(can_forget),
                     "), or pipeline.distance = -1"));
}

// The parameters, in order, of which the run writes the next value. What it keeps beside them is noted; throws Error where that counts.
std::vector<InstanceId> updated_by(RowInWaves& row, const Run& run) {
  std::vector<InstanceId> out;
  for (const Write& write : run.writes) {
    const Instance& instance = row.draft.instances[write.instance];
    if (instance.source != Instance::Source::state || !row.trained[instance.input]) continue;
    if (is_parameter(row, instance.input)) {
      out.push_back(write.instance);
      continue;
    }
    check_unused(row, instance);
    row.unused.insert(write.instance);
  }
  return out;
}

// Returns the instances that the updates of a row are made of, whatever stands between: the sums of gradients, and what axes make of them.
std::set<InstanceId> made_into_updates(const std::vector<Run>& row, const std::vector<std::vector<InstanceId>>& updated) {
  std::set<InstanceId> out;
  for (std::size_t r = row.size(); r-- > 0;) {
    const Run& run = row[r];
    const bool counts =
        !updated[r].empty() || std::ranges::any_of(run.writes, [&](const Write& write) { return out.contains(write.instance); });
    if (counts) out.insert(run.reads.begin(), run.reads.end());
  }
  return out;
}

// Groups the states that lie alike along the axes of the mesh. What is whole on all members is exchanged apart from what they have parts
// of: these may differ in size, and the bits of a sum follow from the size of all that is summed with it.
std::vector<std::vector<InstanceId>> exchanged_together(const RowInWaves& row, const std::vector<InstanceId>& states) {
  const IdVector<InputId, std::uint32_t>& split_along = row.window.split_along;
  std::map<std::uint32_t, std::vector<InstanceId>> out;
  for (const InstanceId state : states) out[split_along.empty() ? 0 : split_along[row.draft.instances[state].input]].push_back(state);
  const auto lists = std::views::values(out);
  return {lists.begin(), lists.end()};
}

// Makes the waves of states that are first exchanged behind one run.
Waves waves_of(const Draft& draft, const std::vector<InstanceId>& states, std::int32_t group, StageId stage) {
  Waves w{states, {}, group, stage};
  for (const InstanceId state : states) w.types.push_back(draft.instances[state].types[0]);
  return w;
}

InstanceId add_all(RowInWaves& row, const Waves& w, const std::string& name) {
  Instance out;
  out.name = concat(name, ":", row.draft.instances[w.states[0]].name);
  out.types = w.types;
  out.home = row.device;
  return add(row.draft, std::move(out));
}

// The graph that sums terms for each of the states, terms[0][i] + terms[1][i] + ..., or takes the difference of two.
Graph combined(const Waves& w, std::size_t terms, bool difference) {
  Graph graph;
  for (std::size_t t = 0; t < terms; ++t)
    for (std::size_t i = 0; i < w.types.size(); ++i) graph.add_input(w.types[i], concat("x", graph.inputs.size()));
  for (std::size_t i = 0; i < w.types.size(); ++i) {
    if (terms == 1) {
      graph.outputs.push_back(graph.inputs[i]);
      continue;
    }
    Op op;
    op.name = difference ? "sub" : "add_n";
    for (std::size_t t = 0; t < terms; ++t) op.operands.push_back(graph.inputs[t * w.types.size() + i]);
    op.results = {graph.add_value(w.types[i])};
    graph.outputs.push_back(op.results[0]);
    graph.ops.push_back(std::move(op));
  }
  return graph;
}

// Adds a run of the graph, of which `run` has what it reads and writes.
Run& put(RowInWaves& row, StageId stage, const char* name, Graph graph, Run run) {
  run.kind = Kind::U;
  run.stage = stage;
  run.task = add_task(row.draft, concat(name, ".", row.draft.tasks.size()), std::move(graph));
  run.window = {.step = row.step, .read = {row.step + 1}, .pulls = true};
  return row.runs.emplace_back(std::move(run));
}

std::vector<Write> written(const std::vector<InstanceId>& states) {
  std::vector<Write> out;
  for (const InstanceId state : states) out.push_back({state, ResultMode::update});
  return out;
}

// The next wave's updates of all, behind which the worker's own of later waves stand.
void pull(RowInWaves& row, Waves& w) {
  const InstanceId sum = w.sums[w.pulled++];
  put(row, w.stage, "pull", combined(w, 2, false), {.reads = {w.server, sum}, .writes = {{w.server, ResultMode::update}}});
  std::vector<InstanceId> terms{w.server};
  terms.insert(terms.end(), w.deltas.begin() + w.pulled, w.deltas.end());
  put(row, w.stage, "pulled", combined(w, terms.size(), false), {.reads = terms, .writes = written(w.states)});
}

void begin_wave(RowInWaves& row, Waves& w) {
  const bool is_first = !w.server;
  if (!is_first && row.window.options.distance == 0) return;  // the worker has what the server has
  w.begin = add_all(row, w, is_first ? "server" : concat("wave.", w.deltas.size()));
  if (is_first) w.server = w.begin;
  put(row, w.stage, "wave", combined(w, 1, false), {.reads = w.states, .writes = {{w.begin}}}).window.read = {row.step};
}

void end_wave(RowInWaves& row, Waves& w) {
  const InstanceId delta = w.deltas.emplace_back(add_all(row, w, concat("delta.", w.deltas.size())));
  std::vector<InstanceId> reads = w.states;
  reads.push_back(w.begin);
  put(row, w.stage, "delta", combined(w, 2, true), {.reads = std::move(reads), .writes = {{delta}}});
  Run& push = row.runs.emplace_back();
  push.opcode = Opcode::all_reduce;
  push.kind = Kind::REDUCE_GRAD;
  push.stage = w.stage;
  push.group = w.group;
  push.reads = {delta};
  push.writes = {{w.sums.emplace_back(add_all(row, w, concat("sum.", w.sums.size())))}};
  push.window.step = row.step;
  if (std::ssize(w.sums) > row.window.options.distance) pull(row, w);
}

// Moments that each worker keeps for itself are alike on all at the end.
void clear(RowInWaves& row, InstanceId state) {
  Graph graph;
  const TensorType& type = row.draft.instances[state].types[0];
  Op& op = graph.ops.emplace_back();
  op.name = "full";
  op.results = {graph.add_value(type)};
  op.attributes = {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}};
  graph.outputs = op.results;
  put(row, {}, "unused", std::move(graph), {.writes = {{state, ResultMode::update}}});
}

// Throws Error where an I or W is elsewhere than its forward: workers leave out the sums of gradients where these are read, which is known
// where they are made.
void check_sums_at_home(const LowerInput& input) {
  const Schedule& schedule = input.schedule;
  const std::vector<std::int32_t> owners = actor_of_stage(schedule);
  for (std::int32_t actor = 0; actor < input.actors(); ++actor)
    for (std::int32_t i = 0; const Action& action : schedule.actors[actor]) {
      if ((action.kind == Kind::I || action.kind == Kind::W) && owners[action.stage] != actor)
        throw Error(
            concat(place(schedule, {actor, i}), ": ", text(action, schedule.slices, schedule.blocks), " is on actor ", actor,
                   ", its forward on actor ", owners[action.stage]),
            {concat("pipeline.distance = ", input.options.distance, " is of workers, whose actors sum their own stages' gradients")},
            concat("move it to row ", owners[action.stage] + 1, ", or set pipeline.distance = -1"));
      ++i;
    }
}

// Puts the waves into the row of one device. Throws Error where a state that is trained is no parameter but a moment of the optimiser's, as
// updates are summed.
void put_waves(RowInWaves row) {
  const std::int32_t steps = steps_of_wave(row.window.schedule), last = row.window.schedule.steps - 1;
  std::vector<Run>& runs = row.draft.actors[row.device];
  std::vector<std::vector<InstanceId>> updated;  // by run
  for (const Run& run : runs) updated.push_back(updated_by(row, run));
  const std::set<InstanceId> own = made_into_updates(runs, updated);
  std::map<std::vector<InstanceId>, Waves> waves;
  std::int32_t group = -1;
  StageId summed;  // last
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Run& run = runs[r];
    if (run.opcode == Opcode::all_reduce && run.group >= 0 && own.contains(run.reads[0])) {
      group = run.group;
      summed = run.stage;
      continue;
    }
    row.step = run.window.step;
    const StageId stage = run.stage ? run.stage : summed;
    std::vector<Waves*> own_waves;
    for (const std::vector<InstanceId>& states : exchanged_together(row, updated[r])) {
      invariant(group >= 0, "an update is made of sums over the actor's devices");
      own_waves.push_back(&waves.try_emplace(states, waves_of(row.draft, states, group, stage)).first->second);
    }
    if (row.step % steps == 0)
      for (Waves* w : own_waves) begin_wave(row, *w);
    row.runs.push_back(std::move(run));
    if (row.step % steps == steps - 1 || row.step == last)
      for (Waves* w : own_waves) end_wave(row, *w);
  }
  row.step = last;
  for (auto& [states, w] : waves)
    while (w.pulled < std::ssize(w.sums)) pull(row, w);
  for (const InstanceId state : row.unused) clear(row, state);
  runs = std::move(row.runs);
}

}  // namespace

void exchange_waves(const LowerInput& input, Draft& draft) {
  if (!is_window(input) || input.options.distance < 0) return;
  check_sums_at_home(input);
  const IdVector<InputId, bool> trained = trained_states(input);
  const IdVector<ValueId, OpId> producer = producers(input.step);
  for (std::int32_t device = 0; const std::int32_t devices : input.group_size)
    for (std::int32_t d = 0; d < devices; ++d, ++device)
      if (devices > 1) put_waves({input, trained, producer, ActorId(device), draft});
}

}  // namespace penstock
