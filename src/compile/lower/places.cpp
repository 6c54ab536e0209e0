// SPDX-License-Identifier: Apache-2.0
// Where the code after the loop runs, and where state lives.
//
// Code that depends on the loop's results runs where it moves the fewest bytes; the ops of one actor that can run without hearing from
// another actor in between are one task:
//   depth(op) = max over its operands of (0 for the loop's, depth(operand) + (1 if it lies on another actor))
// A task before the rest of its depth makes what another actor waits for: the factor that clips is on its way before the first update.
// Where the table has a U of a stage, what needs that stage's accumulators alone is a task of its own and runs there, before the loop of
// the actor has ended; what needs to know of other stages (clipping by the global norm) stays after the loop.
// A state that is updated ahead of that (update_ahead) is written over there too, and once more, after the loop, by the op that validates
// it (OpDefinition::revises). What a stage adds to the norm is a task before the one that updates ahead, so that it is sent meanwhile.
// State is owned by one actor; actors that only read it have copies.
// The result of a collective along an axis of the mesh is there behind the task that makes its operand; who reads it is a later task, too.
// Values made of a gradient that lies flat (blocks.cpp) have the layouts of the ops' rows; the sum of all its elements is a term on each
// device. What reads that is a later task, as if it came from elsewhere: the terms are summed in between. A sum over all elements of states
// alone (the norm of a parameter) is such a term too, where these lie flat.
#include "lower/places.h"

#include <algorithm>
#include <optional>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/ahead.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "ops/optimiser.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Results with one partial sum are that; others are add_n of the partial sums of their actors.
Outside without_loop(const LowerInput& input, const Draft& draft) {
  Outside out{input.step};
  const Op& loop = input.loop_op();
  IdVector<ResultId, std::vector<PartialSum>> partials(loop.results.size());
  for (const PartialSum& partial : draft.partials) partials[partial.result].push_back(partial);
  std::vector<Op> sums;
  for (std::size_t r = 0; r < loop.results.size(); ++r) {
    std::vector<PartialSum>& parts = partials[r];
    invariant(!parts.empty(), "a loop result has no accumulator");
    if (parts.size() == 1) {
      out.partial[loop.results[r]] = parts[0];
      continue;
    }
    std::ranges::sort(parts, {}, [&](const PartialSum& part) { return draft.instances[part.instance].home; });
    Op sum;
    sum.name = "add_n";
    sum.results = {loop.results[r]};
    const TensorType type = out.graph.type(loop.results[r]);
    for (const PartialSum& part : parts) {
      sum.operands.push_back(out.graph.add_value(type));
      out.partial[sum.operands.back()] = part;
    }
    sums.push_back(std::move(sum));
  }
  const auto place = out.graph.ops.begin() + static_cast<std::ptrdiff_t>(input.loop);
  out.graph.ops.insert(out.graph.ops.erase(place), sums.begin(), sums.end());
  return out;
}

// Actors and stages of the table's U.
std::set<std::pair<ActorId, StageId>> updates_of(const Draft& draft) {
  std::set<std::pair<ActorId, StageId>> updates;
  for (const ActorId actor : draft.actors.ids())
    for (const Run& run : draft.actors[actor])
      if (run.placeholder) updates.emplace(actor, run.stage);
  return updates;
}

bool is_flat(const ValueFacts& facts, ValueId v) {
  return facts.layout[v].is_flat();
}

// The operand that says where what the op makes lies: the first that is flat, if it can be one that depends on the loop. None: none is
// flat.
ValueId flat_operand(const ValueFacts& facts, const Op& op) {
  ValueId out;
  for (ValueId v : op.operands)
    if (is_flat(facts, v) && (!out || (facts.dependent[v] && !facts.dependent[out]))) out = v;
  return out;
}

// Notes the sums that lie flat as the loop ends, and the actors whose devices have them.
void note_flat(const LowerInput& input, const Draft& draft, const Outside& outside, ValueFacts& facts) {
  std::map<BlockId, ActorId> actors;
  for (const auto& [value, place] : outside.partial) {
    const Instance& sum = draft.instances[place.instance];
    if (sum.held.is_whole()) continue;
    facts.layout[value] = kFlat;
    actors[sum.block] = place.actor;
  }
  for (const auto& [state, member] : draft.sharded_states) {
    facts.layout[input.value(state)] = kFlat;
    if (const auto found = actors.find(member.block); found != actors.end()) facts.group[input.value(state)] = {found->second};
  }
}

// Notes how the op's results lie that are made of a flat operand. A sum over devices is no other device's to make anew, as if it depended
// on the loop.
void note_layouts(const Graph& graph, const Op& op, ValueFacts& facts) {
  const ValueId from = flat_operand(facts, op);
  if (!from) return;
  const std::optional<LayoutRow> row = flat_row(graph, op, std::ranges::find(op.operands, from) - op.operands.begin());
  invariant(row.has_value(), "what lies flat is read by ops that keep it so, and sums");
  for (std::size_t r = 0; r < op.results.size(); ++r) {
    facts.layout[op.results[r]] = row->results[r];
    facts.group[op.results[r]] = facts.group[from];
    facts.dependent[op.results[r]] = facts.dependent[op.results[r]] || row->results[r].is_term();
  }
}

ValueFacts facts_of(const LowerInput& input, const Draft& draft, const Outside& outside) {
  const Graph& graph = outside.graph;
  const std::size_t values = graph.values.size();
  ValueFacts facts{.producer = producers(graph), .input = input.input_of};
  facts.input.resize(values);
  facts.dependent.resize(values);
  facts.group.resize(values);
  facts.layout.resize(values);
  facts.arrives.resize(values);
  const std::set<std::pair<ActorId, StageId>> updates = updates_of(draft);
  for (const auto& [value, place] : outside.partial) {
    facts.dependent[value] = true;
    facts.group[value] = {place.actor, 0, updates.contains({place.actor, place.stage}) ? place.stage : StageId()};
  }
  note_flat(input, draft, outside, facts);
  for (const Op& op : graph.ops) {
    const bool any = std::ranges::any_of(op.operands, [&](ValueId v) { return facts.dependent[v]; });
    const OpDefinition* definition = find_op(op.name);
    for (ValueId result : op.results) {
      facts.dependent[result] = any;
      facts.arrives[result] = any && definition && definition->collective;
    }
    note_layouts(graph, op, facts);
  }
  return facts;
}

bool depends(const ValueFacts& facts, const Op& op) {
  return !op.results.empty() && facts.dependent[op.results[0]];
}

// The states that a value is made of.
void collect_states(const LowerInput& input, const Graph& graph, const ValueFacts& facts, ValueId value, std::set<InputId>& out) {
  if (const InputId from = facts.input[value]; input.is_state(from)) out.insert(from);
  if (const OpId op = facts.producer[value])
    for (ValueId operand : graph.ops[op].operands) collect_states(input, graph, facts, operand, out);
}

// The next op's place follows from what is decided of the ops before it.
struct Decided {
  const LowerInput& input;
  const Graph& graph;
  const ValueFacts& facts;
  StatePlaces& state;
};

// Notes that the actor makes a value of states that do not depend on the loop.
void hold_states(const Decided& d, ValueId value, ActorId actor) {
  if (d.facts.dependent[value]) return;
  std::set<InputId> states;
  collect_states(d.input, d.graph, d.facts, value, states);
  for (InputId s : states) {
    d.state.holders[s].insert(actor);
    if (!d.state.home[s]) d.state.home[s] = actor;
  }
}

// A state's owner is the actor that runs the first stage reading it.
StatePlaces states_read(const LowerInput& input, const Draft& draft, const Outside& outside, const ValueFacts& facts) {
  const std::size_t states = input.step.state;
  StatePlaces out;
  out.home.resize(states);
  out.holders.resize(states);
  out.readers.resize(states);
  IdVector<InputId, StageId> first_stage(states);
  for (const ActorId actor : draft.actors.ids())
    for (const Run& run : draft.actors[actor]) {
      if (!run.stage) continue;  // what stands before the loop reads for the loop: below
      for (InstanceId read : run.reads) {
        if (draft.instances[read].source != Instance::Source::state) continue;
        const InputId s = draft.instances[read].input;
        out.holders[s].insert(actor);
        out.readers[s].insert(run.stage);
        if (out.home[s] && run.stage >= first_stage[s]) continue;
        out.home[s] = input.owner_of_stage.empty() ? actor : input.owner_of_stage[run.stage];
        first_stage[s] = run.stage;
      }
    }
  const Decided decided{input, outside.graph, facts, out};
  for (const LoopUse& use : draft.uses) hold_states(decided, input.loop_op().operands[use.operand], use.actor);
  return out;
}

bool is_read_by_others(const StatePlaces& state, InputId of, StageId stage) {
  return std::ranges::any_of(state.readers[of], [&](StageId reader) { return reader != stage; });
}

// Where there is no U to update ahead in, or other stages read the state, nothing is gained by that: back to one update at the end.
void update_once(const LowerInput& input, const Draft& draft, const ValueFacts& facts, const StatePlaces& state, Outside& outside) {
  update_ahead_only_where(outside.graph, [&](const Op& ahead) {
    if (input.is_step) return false;  // there a step writes a state once
    const auto gradient = outside.partial.find(ahead.operands[1]);
    const InputId of = facts.input[ahead.operands[0]];
    if (gradient == outside.partial.end() || !input.is_state(of)) return false;
    const Holding& made = draft.instances[gradient->second.instance].held;
    if (!made.is_whole() && holding_of(input, draft, of) != made) return false;  // written at the step's end
    return facts.group[ahead.operands[1]].update && !is_read_by_others(state, of, gradient->second.stage);
  });
}

// Terms of a sum that arise in one task are added up there: then there is one to be summed over the devices.
void add_up_terms(const ValueFacts& facts, Graph& graph, Op& sum, std::vector<Op>& ops) {
  std::map<TaskGroup, std::vector<ValueId>> terms;
  std::vector<ValueId> operands;
  for (ValueId v : sum.operands) (facts.layout[v].is_term() ? terms[facts.group[v]] : operands).push_back(v);
  if (operands.size() + terms.size() < 2) return;  // the sum arises in that task
  for (const auto& [group, list] : terms) {
    Op joined = sum;
    joined.operands = list;
    joined.results = {graph.add_value(graph.type(sum.results[0]))};
    operands.push_back(joined.results[0]);
    ops.push_back(std::move(joined));
  }
  sum.operands = std::move(operands);
}

void add_up_terms(const ValueFacts& facts, Graph& graph) {
  std::vector<Op> ops;
  for (Op& op : graph.ops) {
    if (op.name == "add_n") add_up_terms(facts, graph, op, ops);
    ops.push_back(std::move(op));
  }
  graph.ops = std::move(ops);
}

// The earlier version of which the value is a later one; none: it is no such.
ValueId revised(const Graph& graph, const ValueFacts& facts, ValueId v) {
  const OpId from = facts.producer[v];
  if (!from) return {};
  const Op& op = graph.ops[from];
  const OpDefinition* definition = find_op(op.name);
  if (!definition || !definition->revises) return {};
  return op.operands[std::ranges::find(op.results, v) - op.results.begin()];
}

// By op: the first state that a result of it is a version of.
IdVector<OpId, InputId> written_states(const Graph& graph, const ValueFacts& facts) {
  IdVector<OpId, InputId> out(graph.ops.size());
  for (std::int32_t s = graph.state; s-- > 0;)
    for (ValueId v = graph.outputs[s]; v; v = revised(graph, facts, v))
      if (const OpId from = facts.producer[v]) out[from] = InputId(s);
  return out;
}

// Partial sums, which the step does not have, are as large as what they are summed to.
std::int64_t bytes_of(const Decided& d, const Op& op, ValueId v) {
  if (v.index() >= d.input.step.values.size()) v = op.results[0];
  return d.input.first_bytes.empty() ? d.graph.type(v).bytes() : d.input.first_bytes[v];
}

std::int64_t bytes_moved(const Decided& d, const Op& op, ActorId actor, InputId written) {
  std::int64_t bytes = 0;
  for (ValueId v : op.operands) {
    const InputId from = d.facts.input[v];
    if (d.facts.dependent[v]) {
      if (d.facts.group[v].actor != actor) bytes += bytes_of(d, op, v);
    } else if (d.input.is_state(from)) {
      if (d.state.home[from] && !d.state.holders[from].contains(actor)) bytes += bytes_of(d, op, v);
    }
  }
  if (written && d.state.home[written] && d.state.home[written] != actor) bytes += bytes_of(d, op, op.results[0]);
  return bytes;
}

ActorId actor_for(const Decided& d, const Op& op, InputId written) {
  const bool has_flat = std::ranges::any_of(op.operands, [&](ValueId v) { return is_flat(d.facts, v); });
  std::set<ActorId> candidates;
  for (ValueId v : op.operands)
    if (has_flat ? is_flat(d.facts, v) : d.facts.dependent[v]) candidates.insert(d.facts.group[v].actor);
  if (!has_flat && written && d.state.home[written]) candidates.insert(d.state.home[written]);
  ActorId best;
  std::int64_t best_bytes = 0;
  for (ActorId actor : candidates) {
    const std::int64_t bytes = bytes_moved(d, op, actor, written);
    if (best && bytes >= best_bytes) continue;
    best = actor;
    best_bytes = bytes;
  }
  return best;
}

// Does it only add up terms that arise in one task?
bool adds_terms(const ValueFacts& facts, const Op& op) {
  return op.name == "add_n" && std::ranges::all_of(op.operands, [&](ValueId v) {
           return facts.layout[v].is_term() && facts.group[v] == facts.group[op.operands[0]];
         });
}

TaskGroup group_of(const Decided& d, const Op& op, ActorId actor, InputId written) {
  TaskGroup group{actor};
  std::optional<StageId> update;
  const bool adds = adds_terms(d.facts, op);
  for (ValueId v : op.operands) {
    if (!d.facts.dependent[v]) continue;
    const TaskGroup& from = d.facts.group[v];
    const bool waits = from.actor != actor || d.facts.arrives[v] || (d.facts.layout[v].is_term() && !adds);
    group.depth = std::max(group.depth, from.depth + waits);
    update = !update || *update == from.update ? from.update : StageId();
    group.ahead = group.ahead || from.ahead;
  }
  group.update = update.value_or(StageId());
  // A state that other stages read must not change before they have.
  if (group.depth > 0 || (group.update && written && is_read_by_others(d.state, written, group.update))) group.update = {};
  group.ahead = group.update && (group.ahead || is_update_ahead(op));
  return group;
}

// Throws Error where an op that depends on the loop reads what is made of states alone and of a sum over the members of an axis: each task
// makes such values for itself, and only sums of gradients are made behind one.
void check_made_alone(const LowerInput& input, const Graph& graph, const ValueFacts& facts) {
  if (input.lines.empty()) return;
  IdVector<ValueId, OpId> summed(graph.values.size());  // the sum that a value is made of, of those that do not depend on the loop
  for (const OpId i : graph.ops.ids()) {
    const Op& op = graph.ops[i];
    OpId sum;
    for (const ValueId operand : op.operands)
      if (summed[operand]) sum = summed[operand];
    if (!depends(facts, op)) {
      for (const ValueId result : op.results) summed[result] = is_collective(op) ? i : sum;
      continue;
    }
    if (!sum) continue;
    const Op& made = graph.ops[sum];
    throw Error(
        concat("an update reads ", quote(made.name), " of ", graph.type(made.results[0]).text(), ", which no gradient is in"),
        {"members of a mesh axis have parts of a state, and what is made of states alone is not summed over them"},
        "leave the tensor whole (tensor = 1), or take an optimiser that does not measure parameters; under train.lazy_rows, leave the "
        "rows of tables whole (layout.vocab = \"\", layout.rows = \"\"), whose columns may be split");
  }
}

using GroupOps = std::map<TaskGroup, std::vector<std::size_t>>;

// Gives each op that depends on the loop its group, in order; states that only it needs (Adam's moments) live where it runs.
GroupOps place_ops(const LowerInput& input, const Graph& graph, ValueFacts& facts, StatePlaces& state) {
  check_made_alone(input, graph, facts);
  const IdVector<OpId, InputId> written = written_states(graph, facts);
  const Decided decided{input, graph, facts, state};
  GroupOps ops;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (!depends(facts, op)) continue;
    if (facts.arrives[op.results[0]]) {
      facts.group[op.results[0]] = facts.group[op.operands[0]];
      continue;
    }
    const ActorId actor = actor_for(decided, op, written[i]);
    const TaskGroup group = group_of(decided, op, actor, written[i]);
    for (ValueId result : op.results) {
      facts.group[result] = group;
      if (adds_terms(facts, op)) facts.layout[result] = kTerm;
    }
    for (ValueId v : op.operands) hold_states(decided, v, actor);
    ops[group].push_back(i);
  }
  return ops;
}

// Values that other actors wait for, or that such values are made of in the same group.
IdVector<ValueId, bool> awaited_values(const Graph& graph, const ValueFacts& facts) {
  IdVector<ValueId, bool> awaited;
  for (const Layout& layout : facts.layout) awaited.push_back(layout.is_term());
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    if (!depends(facts, op)) continue;
    const TaskGroup& group = facts.group[op.results[0]];
    const bool needed = facts.arrives[op.results[0]] || std::ranges::any_of(op.results, [&](ValueId v) { return awaited[v]; });
    for (ValueId v : op.operands) {
      if (!facts.dependent[v]) continue;
      const TaskGroup& from = facts.group[v];
      if (from.actor != group.actor || (needed && from == group)) awaited[v] = true;
    }
  }
  return awaited;
}

// Splits each depth of an actor into what other actors wait for, and what it needs itself, and the rest.
GroupOps set_apart(const Graph& graph, const GroupOps& groups, ValueFacts& facts) {
  const IdVector<ValueId, bool> awaited = awaited_values(graph, facts);
  const auto needed = [&](std::size_t i) { return std::ranges::any_of(graph.ops[i].results, [&](ValueId v) { return awaited[v]; }); };
  GroupOps out;
  for (const auto& [key, ops] : groups) {
    const bool splits = !key.update && std::ranges::any_of(ops, needed);
    for (std::size_t i : ops) {
      TaskGroup group = key;
      group.alone = splits && !needed(i);
      for (ValueId result : graph.ops[i].results) facts.group[result] = group;
      out[group].push_back(i);
    }
  }
  return out;
}

void settle_states(const Decided& d) {
  const auto& [input, graph, facts, state] = d;
  // An output that depends on no loop result (the learning rate) is computed by actor 0.
  for (std::size_t o = graph.state; o < graph.outputs.size(); ++o) hold_states(d, graph.outputs[o], ActorId(0));
  for (const InputId s : state.home.ids()) {
    const ValueId next = graph.outputs[s.value];
    const bool dependent = facts.dependent[next];
    if (!state.home[s]) state.home[s] = dependent ? facts.group[next].actor : ActorId(0);
    state.holders[s].insert(state.home[s]);
    // A next value that depends on no loop result is computed by every holder.
    if (dependent) continue;
    for (ActorId actor : std::set<ActorId>(state.holders[s])) hold_states(d, next, actor);
  }
}

// The groups on each state's home that read it.
IdVector<InputId, std::set<TaskGroup>> reading_groups(const LowerInput& input, const Places& p) {
  IdVector<InputId, std::set<TaskGroup>> readers(p.state.home.size());
  for (const auto& [key, ops] : p.ops)
    for (std::size_t i : ops)
      for (ValueId v : p.graph().ops[i].operands) {
        std::set<InputId> states;
        if (!p.dependent(v)) collect_states(input, p.graph(), p.value, v, states);
        for (InputId state : states)
          if (p.state.home[state] == key.actor) readers[state].insert(key);
      }
  return readers;
}

// Does the value arise where the state lives, in the last group that reads the present one?
bool is_written_in_place(const Places& p, ActorId home, const std::set<TaskGroup>& readers, ValueId v) {
  const TaskGroup& group = p.group(v);
  const auto is_behind = [&](const TaskGroup& a) { return std::pair(a.depth, a.alone) > std::pair(group.depth, group.alone); };
  return group.actor == home &&
         std::ranges::all_of(readers, [&](const TaskGroup& reader) { return reader == group || (!group.update && !is_behind(reader)); });
}

// The one place that knows that a state has one version at a time: which next values are written over the present one, and which versions
// are before the last one is, where that alone is made of them, later and on the state's home.
void decide_in_place(const LowerInput& input, Places& p) {
  const IdVector<InputId, std::set<TaskGroup>> readers = reading_groups(input, p);
  const IdVector<ValueId, int> uses = use_counts(p.graph());
  const auto in_place = [&](InputId s, ValueId v) { return !p.value.arrives[v] && is_written_in_place(p, p.state.home[s], readers[s], v); };
  for (const InputId s : p.state.home.ids()) {
    const ValueId next = p.graph().outputs[s.value], early = revised(p.graph(), p.value, next);
    p.in_place.push_back(in_place(s, next));
    if (!early || !p.dependent(early) || uses[early] != 1 || p.group(early) == p.group(next)) continue;
    if (in_place(s, early) && p.in_place[s]) p.early[early] = s;
  }
}

}  // namespace

Member member_of(const Draft& draft, const Places& p, ValueId flat) {
  while (const OpId from = p.value.producer[flat]) flat = flat_operand(p.value, p.graph().ops[from]);
  const auto partial = p.outside.partial.find(flat);
  if (partial == p.outside.partial.end()) return draft.sharded_states.at(p.value.input[flat]);
  const Instance& from = draft.instances[partial->second.instance];
  return {from.block, from.members[partial->second.part]};
}

Places find_places(const LowerInput& input, const Draft& draft) {
  Places p;
  p.outside = without_loop(input, draft);
  p.value = facts_of(input, draft, p.outside);
  p.state = states_read(input, draft, p.outside, p.value);
  update_once(input, draft, p.value, p.state, p.outside);
  p.value = facts_of(input, draft, p.outside);
  if (!draft.blocks.empty()) {
    add_up_terms(p.value, p.outside.graph);
    p.value = facts_of(input, draft, p.outside);
  }
  p.ops = set_apart(p.graph(), place_ops(input, p.graph(), p.value, p.state), p.value);
  for (std::size_t i = 0; i < p.graph().ops.size(); ++i)
    if (const Op& op = p.graph().ops[i]; depends(p.value, op) && p.value.arrives[op.results[0]])
      p.collectives[p.group(op.results[0])].push_back(i);
  settle_states({input, p.graph(), p.value, p.state});
  decide_in_place(input, p);
  return p;
}

}  // namespace penstock
