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

// Whether the loop reads the state or an optimiser's op has it as what it updates. A member of an axis may update what another's loop
// reads.
bool is_parameter(const LowerInput& window, InputId state, const IdVector<ValueId, OpId>& producer) {
  const std::vector<ValueId>& read = window.loop_op().operands;
  if (std::ranges::find(read, window.value(state)) != read.end()) return true;
  const ValueId next = window.step.outputs[state.index()];
  const OpId made = producer[next];
  return made && is_update(window.step.ops[made]) && window.step.ops[made].results[0] == next;
}

bool can_forget(const OptimiserInfo& optimiser) {
  return optimiser.fused && !find_op(optimiser.fused->op)->update->momentum.empty();
}

// Throws unless the state is what an update keeps that no parameter depends on (of sgd without momentum, its last gradient).
void check_unused(const LowerInput& window, const Instance& state, const IdVector<ValueId, OpId>& producer) {
  if (const OpId made = producer[window.step.outputs[state.input.index()]])
    if (forgets(window.step.ops[made])) return;
  throw Error(concat("schedule ", window.schedule.name, ": workers sum their updates, and ", quote(state.name), " is no parameter"),
              {"what an optimiser keeps beside the parameters would be another on each worker"},
              concat("set train.momentum = 0 and an optimiser that then keeps nothing that counts (", optimisers_where(can_forget),
                     "), or pipeline.distance = -1"));
}

// The parameters, in order, of which the run writes the next value; `unused`: what it keeps beside them. Throws Error where that counts.
std::vector<InstanceId> updated_by(const LowerInput& window, const IdVector<InputId, bool>& trained,
                                   const IdVector<ValueId, OpId>& producer, const Draft& draft, const Run& run,
                                   std::set<InstanceId>& unused) {
  std::vector<InstanceId> out;
  for (const Write& write : run.writes) {
    const Instance& instance = draft.instances[write.instance];
    if (instance.source != Instance::Source::state || !trained[instance.input]) continue;
    if (is_parameter(window, instance.input, producer)) {
      out.push_back(write.instance);
      continue;
    }
    check_unused(window, instance, producer);
    unused.insert(write.instance);
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
std::vector<std::vector<InstanceId>> exchanged_together(const LowerInput& window, const Draft& draft,
                                                        const std::vector<InstanceId>& states) {
  std::map<std::uint32_t, std::vector<InstanceId>> out;
  for (const InstanceId state : states)
    out[window.split_along.empty() ? 0 : window.split_along[draft.instances[state].input]].push_back(state);
  const auto lists = std::views::values(out);
  return {lists.begin(), lists.end()};
}

// Makes the waves of states that are first exchanged behind one run.
Waves waves_of(const Draft& draft, const std::vector<InstanceId>& states, std::int32_t group, StageId stage) {
  Waves w{states, {}, group, stage};
  for (const InstanceId state : states) w.types.push_back(draft.instances[state].types[0]);
  return w;
}

InstanceId add_all(Draft& draft, const Waves& w, const std::string& name, ActorId device) {
  Instance out;
  out.name = concat(name, ":", draft.instances[w.states[0]].name);
  out.types = w.types;
  out.home = device;
  return add(draft, std::move(out));
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

Run task(Draft& draft, const Waves& w, const char* name, Graph graph, std::vector<InstanceId> reads, std::vector<Write> writes,
         std::int32_t step) {
  Run out;
  out.kind = Kind::U;
  out.stage = w.stage;
  out.task = add_task(draft, concat(name, ".", draft.tasks.size()), std::move(graph));
  out.reads = std::move(reads);
  out.writes = std::move(writes);
  out.window.step = step;
  out.window.read = {step + 1};
  out.window.pulls = true;
  return out;
}

std::vector<Write> written(const std::vector<InstanceId>& states) {
  std::vector<Write> out;
  for (const InstanceId state : states) out.push_back({state, ResultMode::update});
  return out;
}

// The next wave's updates of all, behind which the worker's own of later waves stand.
void pull(Draft& draft, Waves& w, std::int32_t step, std::vector<Run>& out) {
  const InstanceId sum = w.sums[w.pulled++];
  out.push_back(task(draft, w, "pull", combined(w, 2, false), {w.server, sum}, {{w.server, ResultMode::update}}, step));
  std::vector<InstanceId> terms{w.server};
  terms.insert(terms.end(), w.deltas.begin() + w.pulled, w.deltas.end());
  const std::size_t count = terms.size();
  out.push_back(task(draft, w, "pulled", combined(w, count, false), std::move(terms), written(w.states), step));
}

void begin_wave(Draft& draft, Waves& w, std::int32_t distance, std::int32_t step, ActorId device, std::vector<Run>& out) {
  const bool is_first = !w.server;
  if (!is_first && distance == 0) return;  // the worker has what the server has
  w.begin = add_all(draft, w, is_first ? "server" : concat("wave.", w.deltas.size()), device);
  if (is_first) w.server = w.begin;
  out.push_back(task(draft, w, "wave", combined(w, 1, false), w.states, {{w.begin}}, step));
  out.back().window.read = {step};
}

void end_wave(Draft& draft, Waves& w, std::int32_t distance, std::int32_t step, ActorId device, std::vector<Run>& out) {
  const InstanceId delta = w.deltas.emplace_back(add_all(draft, w, concat("delta.", w.deltas.size()), device));
  std::vector<InstanceId> reads = w.states;
  reads.push_back(w.begin);
  out.push_back(task(draft, w, "delta", combined(w, 2, true), std::move(reads), {{delta}}, step));
  Run push;
  push.opcode = Opcode::all_reduce;
  push.kind = Kind::REDUCE_GRAD;
  push.stage = w.stage;
  push.group = w.group;
  push.reads = {delta};
  push.writes = {{w.sums.emplace_back(add_all(draft, w, concat("sum.", w.sums.size()), device))}};
  push.window.step = step;
  out.push_back(std::move(push));
  if (std::ssize(w.sums) > distance) pull(draft, w, step, out);
}

// Moments that each worker keeps for itself are alike on all at the end.
Run zeros(Draft& draft, InstanceId state, std::int32_t step) {
  Graph graph;
  const TensorType& type = draft.instances[state].types[0];
  Op& op = graph.ops.emplace_back();
  op.name = "full";
  op.results = {graph.add_value(type)};
  op.attributes = {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}};
  graph.outputs = op.results;
  return task(draft, {}, "unused", std::move(graph), {}, {{state, ResultMode::update}}, step);
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

// The row of one device with its waves. `trained`: by state; `producer`: of the step's values. Throws Error where a state that is trained
// is no parameter but a moment of the optimiser's, as updates are summed.
std::vector<Run> in_waves(const LowerInput& window, const IdVector<InputId, bool>& trained, const IdVector<ValueId, OpId>& producer,
                          ActorId device, Draft& draft) {
  const std::int32_t distance = window.options.distance, steps = steps_of_wave(window.schedule), last = window.schedule.steps - 1;
  std::vector<Run> row = std::move(draft.actors[device]);
  std::set<InstanceId> unused;
  std::vector<std::vector<InstanceId>> updated;  // by run
  for (const Run& run : row) updated.push_back(updated_by(window, trained, producer, draft, run, unused));
  const std::set<InstanceId> own = made_into_updates(row, updated);
  std::map<std::vector<InstanceId>, Waves> waves;
  std::vector<Run> out;
  std::int32_t group = -1;
  StageId summed;  // last
  for (std::size_t r = 0; r < row.size(); ++r) {
    Run& run = row[r];
    if (run.opcode == Opcode::all_reduce && run.group >= 0 && own.contains(run.reads[0])) {
      group = run.group;
      summed = run.stage;
      continue;
    }
    const std::int32_t step = run.window.step;
    const StageId stage = run.stage ? run.stage : summed;
    std::vector<Waves*> own_waves;
    for (const std::vector<InstanceId>& states : exchanged_together(window, draft, updated[r])) {
      invariant(group >= 0, "an update is made of sums over the actor's devices");
      own_waves.push_back(&waves.try_emplace(states, waves_of(draft, states, group, stage)).first->second);
    }
    if (step % steps == 0)
      for (Waves* w : own_waves) begin_wave(draft, *w, distance, step, device, out);
    out.push_back(std::move(run));
    if (step % steps == steps - 1 || step == last)
      for (Waves* w : own_waves) end_wave(draft, *w, distance, step, device, out);
  }
  for (auto& [states, w] : waves)
    while (w.pulled < std::ssize(w.sums)) pull(draft, w, last, out);
  for (const InstanceId state : unused) out.push_back(zeros(draft, state, last));
  return out;
}

}  // namespace

void exchange_waves(const LowerInput& input, Draft& draft) {
  if (!is_window(input) || input.options.distance < 0) return;
  check_sums_at_home(input);
  const IdVector<InputId, bool> trained = trained_states(input);
  const IdVector<ValueId, OpId> producer = producers(input.step);
  for (std::int32_t device = 0; const std::int32_t devices : input.group_size)
    for (std::int32_t d = 0; d < devices; ++d, ++device)
      if (devices > 1) draft.actors[ActorId(device)] = in_waves(input, trained, producer, ActorId(device), draft);
}

}  // namespace penstock
