// SPDX-License-Identifier: Apache-2.0
// Pass: the code after the loop, as one task for each group of find_places.
//
// Code that does not depend on the loop's results is cloned into the tasks that need it.
// A state's next value is written over it on its home, by the task that makes it where that is the last to read the present one.
// A tensor that lies flat on an actor's devices (blocks.cpp) is worked on as it lies: the runs made here are of whole tensors, the pass
// `devices` cuts them. Terms of sums are summed over the devices behind the task that makes them. What must be whole again (parameters
// where only their moments are in shares) is gathered, a block at a time, and written where it lies at the step's end.
#include <algorithm>
#include <map>
#include <set>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/fragment.h"
#include "lower/passes.h"
#include "lower/places.h"

namespace penstock {
namespace {

// Members of one block that arise in one task, and must be whole or what a host has.
struct Gather {
  TaskGroup group;
  BlockId block;
  Holding held;
  std::vector<ValueId> values;                            // of each member; none: not asked for
  std::vector<std::pair<std::int32_t, Write>> targets{};  // of members
  InstanceId share{}, gathered{};
};

// The code after the loop in the making: where it runs, and the values that its tasks hand on to other tasks, to states or to outputs.
struct After {
  const LowerInput& input;
  Draft& draft;
  const Places p;
  std::map<ValueId, InstanceId> exported{};         // to other tasks, as next states, as outputs
  std::map<ValueId, InstanceId> whole{};            // outputs that are held in shares
  std::map<TaskGroup, std::set<ValueId>> clones{};  // values that depend on no loop result, asked for there
  std::vector<Gather> gathers{};
  std::set<TaskGroup> groups{};  // that get a task: those of ops, and of what is only given away
};

std::size_t first_output(const After& a) {
  return a.p.graph().state;
}

// Has every device, or host, more of the state than the share of its next value that it makes?
bool is_gathered(const After& a, InputId state) {
  const ValueId next = a.p.graph().outputs[state.index()];
  return next != a.p.graph().inputs[state.index()] && a.p.is_flat(next) && holding_of(a.input, a.draft, state) != device_share(a.input);
}

// States that a task writes the next value of, or that are copied over.
std::vector<InputId> written_whole(const After& a) {
  std::vector<InputId> out;
  for (const InputId s : a.p.in_place.ids())
    if (a.p.graph().outputs[s.value] != a.p.graph().inputs[s.value] && !is_gathered(a, s)) out.push_back(s);
  return out;
}

TaskGroup last_group(const After& a, ActorId actor) {
  TaskGroup last{actor};
  for (const auto& [key, ops] : a.p.ops)
    if (key.actor == actor && !key.update) last = std::max(last, key);
  return last;
}

// Gives a value computed after the loop an instance; a partial sum that is itself asked for is copied out by a task.
void give_away(After& a, ValueId v) {
  const auto [it, added] = a.exported.try_emplace(v);
  if (!added) return;
  Instance exported;
  exported.name = concat("after:", v.value);
  exported.types = {a.p.type(v)};
  exported.home = a.p.group(v).actor;
  if (a.p.is_flat(v)) {
    const Member member = member_of(a.draft, a.p, v);
    exported.block = member.block;
    exported.members = {member.index};
    exported.held = device_share(a.input);
  }
  it->second = add(a.draft, std::move(exported));
  a.groups.insert(a.p.group(v));
}

// A collective along an axis has an instance for what it reads and one for what it makes.
void give_to_collectives(After& a) {
  for (const auto& [key, ops] : a.p.collectives)
    for (std::size_t i : ops)
      for (ValueId v : {a.p.graph().ops[i].operands[0], a.p.graph().ops[i].results[0]}) give_away(a, v);
}

void give_to_others(After& a) {
  for (const auto& [key, ops] : a.p.ops)
    for (std::size_t i : ops)
      for (ValueId v : a.p.graph().ops[i].operands)
        if (a.p.dependent(v) && !a.p.outside.partial.contains(v) && !a.p.early.contains(v) && a.p.group(v) != key) give_away(a, v);
  for (std::size_t o = first_output(a); o < a.p.graph().outputs.size(); ++o) {
    const ValueId v = a.p.graph().outputs[o];
    if (a.p.is_flat(v)) continue;
    if (a.p.dependent(v))
      give_away(a, v);
    else
      a.clones[last_group(a, ActorId(0))].insert(v);
  }
  for (InputId s : written_whole(a)) {
    const ValueId next = a.p.graph().outputs[s.index()];
    if (a.p.dependent(next)) {
      give_away(a, next);
      continue;
    }
    for (ActorId actor : a.p.state.holders[s]) a.clones[last_group(a, actor)].insert(next);
  }
}

void gather(After& a, ValueId v, Write target) {
  const Member member = member_of(a.draft, a.p, v);
  const TaskGroup& group = a.p.group(v);
  const std::size_t m = member.index;
  const Holding held = a.draft.instances[target.instance].held;
  auto found = std::ranges::find_if(a.gathers, [&](const Gather& other) {
    return other.group == group && other.block == member.block && other.held == held && (!other.values[m] || other.values[m] == v);
  });
  if (found == a.gathers.end()) {
    Gather made{group, member.block, held, std::vector<ValueId>(a.draft.blocks[member.block].members.size())};
    const std::string name = concat("next:", member.block.value, ".", a.gathers.size());
    made.share = add_block(a.draft, member.block, group.actor, concat(name, ".share"), device_share(a.input));
    made.gathered = add_block(a.draft, member.block, group.actor, name, held);
    found = a.gathers.insert(a.gathers.end(), std::move(made));
    a.groups.insert(group);
  }
  found->values[m] = v;
  found->targets.push_back({member.index, target});
}

void give_to_gathers(After& a) {
  for (const InputId s : a.p.in_place.ids())
    if (is_gathered(a, s)) gather(a, a.p.graph().outputs[s.value], {input_instance(a.input, a.draft, s), ResultMode::update});
  for (std::size_t o = first_output(a); o < a.p.graph().outputs.size(); ++o) {
    const ValueId v = a.p.graph().outputs[o];
    if (!a.p.is_flat(v) || a.whole.contains(v)) continue;
    Instance whole;
    whole.name = concat("whole:", v.value);
    whole.types = {a.p.type(v)};
    whole.home = a.p.group(v).actor;
    a.whole[v] = add(a.draft, std::move(whole));
    gather(a, v, {a.whole[v]});
  }
}

void give_away(After& a) {
  for (const auto& [group, ops] : a.p.ops) a.groups.insert(group);
  give_to_collectives(a);
  give_to_others(a);
  give_to_gathers(a);
  for (const auto& [key, values] : a.clones) a.groups.insert(key);
}

// Values that are read from their instances: by another task, as outputs, or to be copied over a state.
IdVector<ValueId, bool> read_from_instances(const After& a) {
  IdVector<ValueId, bool> out(a.p.graph().values.size());
  for (const auto& [key, ops] : a.p.ops)
    for (std::size_t i : ops)
      for (ValueId v : a.p.graph().ops[i].operands)
        if (a.p.group(v) != key && !a.p.early.contains(v)) out[v] = true;
  for (const auto& [key, ops] : a.p.collectives)
    for (std::size_t i : ops) out[a.p.graph().ops[i].operands[0]] = true;
  for (std::size_t o = first_output(a); o < a.p.graph().outputs.size(); ++o)
    if (!a.p.is_flat(a.p.graph().outputs[o])) out[a.p.graph().outputs[o]] = true;
  for (const InputId s : a.p.in_place.ids())
    if (!a.p.in_place[s] && !is_gathered(a, s)) out[a.p.graph().outputs[s.value]] = true;
  return out;
}

using Outputs = std::vector<std::pair<ValueId, Write>>;

// Next states that the group's task may write in place: it is the last on its actor that reads the present one.
void put_states(const After& a, const TaskGroup& key, Outputs& out) {
  for (InputId s : written_whole(a)) {
    const ValueId next = a.p.graph().outputs[s.index()];
    const bool here = a.p.dependent(next) ? a.p.group(next) == key && a.p.in_place[s]
                                          : a.p.state.holders[s].contains(key.actor) && key == last_group(a, key.actor);
    if (here) out.push_back({next, {input_instance(a.input, a.draft, s), ResultMode::update}});
  }
  for (const auto& [value, s] : a.p.early)
    if (a.p.group(value) == key) out.push_back({value, {input_instance(a.input, a.draft, s), ResultMode::update}});
}

// Values that others read, and on actor 0 the outputs that depend on no loop result.
void put_values(After& a, const IdVector<ValueId, bool>& is_read, const TaskGroup& key, Outputs& out) {
  for (const auto& [v, instance] : a.exported)
    if (a.p.group(v) == key && is_read[v] && !a.p.value.arrives[v]) out.push_back({v, {instance}});
  if (!a.clones.contains(key) || key.actor != ActorId(0)) return;
  for (std::size_t o = first_output(a); o < a.p.graph().outputs.size(); ++o) {
    const ValueId v = a.p.graph().outputs[o];
    if (a.p.dependent(v) || a.exported.contains(v)) continue;
    Instance made;
    made.name = concat("after:", v.value);
    made.types = {a.p.type(v)};
    made.home = ActorId(0);
    a.exported[v] = add(a.draft, std::move(made));
    out.push_back({v, {a.exported[v]}});
  }
}

// Where a group's task reads values from.
FindInstance sources(const After& a, const TaskGroup& key) {
  std::map<ValueId, InstanceId> before;
  for (const LoopUse& use : a.draft.uses)
    if (!use.unit && use.actor == key.actor) before[a.input.loop_op().operands[use.operand]] = use.instance;
  return [&a, key, before = std::move(before)](ValueId v) -> std::optional<InstancePart> {
    if (const auto partial = a.p.outside.partial.find(v); partial != a.p.outside.partial.end())
      return InstancePart{partial->second.instance, partial->second.part};
    if (const InputId from = a.p.value.input[v]) return InstancePart{input_instance(a.input, a.draft, from)};
    if (const auto early = a.p.early.find(v); early != a.p.early.end() && a.p.group(v) != key)
      return InstancePart{input_instance(a.input, a.draft, early->second)};
    if (a.p.dependent(v) && a.p.group(v) != key) return InstancePart{a.exported.at(v)};
    if (const auto made = before.find(v); made != before.end()) return InstancePart{made->second};
    return std::nullopt;
  };
}

// At the end of the actor's runs, or in the place of its stage's U: what updates ahead behind the rest.
void put(Draft& draft, const TaskGroup& group, Run run) {
  std::vector<Run>& runs = draft.actors[group.actor];
  if (!group.update) return runs.push_back(std::move(run));
  const auto place = std::ranges::find_if(runs, [&](const Run& other) { return other.placeholder && other.stage == group.update; });
  invariant(place != runs.end(), "an update group has its U");
  run.kind = Kind::U;
  run.stage = group.update;
  run.window = place->window;
  runs.insert(place, std::move(run));
}

// The block's members, those of them that nobody asks for as zeros: each has its place.
void put_share(Draft& draft, const Gather& gather, Fragment& fragment, const FindInstance& find, Run& run) {
  const std::vector<TensorType>& types = draft.blocks[gather.block].members;
  for (std::size_t m = 0; m < types.size(); ++m) {
    ValueId value = gather.values[m] ? fragment.need(draft, gather.values[m], find) : ValueId();
    if (!value) {
      value = fragment.graph.add_value(types[m]);
      Op& zeros = fragment.graph.ops.emplace_back();
      zeros.name = "full";
      zeros.results = {value};
      zeros.attributes = {{"dtype", types[m].dtype}, {"fill_value", 0.0}, {"size", types[m].shape}};
    }
    fragment.graph.outputs.push_back(value);
  }
  run.writes.push_back({gather.share});
}

// Behind the task: its terms are summed over the devices, its shares given to all; and what is to be done along axes.
void put_collectives(const After& a, const TaskGroup& key) {
  const auto collective = [&](Opcode opcode, InstanceId from, Write to) {
    Run run;
    run.opcode = opcode;
    run.reads = {from};
    run.writes = {to};
    put(a.draft, key, std::move(run));
  };
  for (const auto& [v, instance] : a.exported)
    if (a.p.value.layout[v].is_term() && a.p.group(v) == key) collective(Opcode::all_reduce, instance, {instance, ResultMode::update});
  for (const Gather& gather : a.gathers) {
    if (gather.group != key) continue;
    InstanceId from = gather.share;
    if (gather.held.is_whole() && a.draft.instances[from].held != kHostShare) {  // flat along both axes: whole along one, then the other
      from = add_block(a.draft, gather.block, key.actor, concat(a.draft.instances[from].name, ".node"), kHostShare);
      collective(Opcode::all_gather, gather.share, {from});
    }
    collective(Opcode::all_gather, from, {gather.gathered});
  }
  const auto along_axes = a.p.collectives.find(key);
  if (along_axes == a.p.collectives.end()) return;
  for (std::size_t i : along_axes->second) {
    const Op& op = a.p.graph().ops[i];
    Run run;
    make_collective(a.input, op, run);
    run.reads = {a.exported.at(op.operands[0])};
    run.writes = {{a.exported.at(op.results[0])}};
    put(a.draft, key, std::move(run));
  }
}

void put_task(const After& a, const Outputs& outputs, const TaskGroup& key) {
  Fragment fragment(a.p.graph(), a.p.value.producer);
  const FindInstance find = sources(a, key);
  if (const auto ops = a.p.ops.find(key); ops != a.p.ops.end())
    for (std::size_t i : ops->second) fragment.copy(a.draft, a.p.graph().ops[i], find);
  Run run;
  for (const auto& [value, write] : outputs) {
    fragment.graph.outputs.push_back(fragment.need(a.draft, value, find));
    run.writes.push_back(write);
  }
  for (const Gather& gather : a.gathers)
    if (gather.group == key) put_share(a.draft, gather, fragment, find, run);
  if (fragment.graph.outputs.empty()) return;
  run.reads = fragment.reads;
  const std::string name = key.update ? concat("U", key.update.value, key.ahead ? ".ahead" : "")
                                      : concat("after.", key.actor.value, ".", key.depth, key.alone ? ".alone" : "");
  run.task = add_task(a.draft, name, std::move(fragment.graph));
  put(a.draft, key, std::move(run));
  put_collectives(a, key);
}

// Adds the run that copies gathered tensors to where they lie between steps, when nothing reads any more what lies there.
void unpack(Draft& draft, const Gather& gather) {
  Graph graph;
  Run run;
  for (const TensorType& t : draft.blocks[gather.block].members) graph.add_input(t, concat("x", graph.inputs.size()));
  for (const auto& [member, target] : gather.targets) {
    graph.outputs.push_back(graph.inputs[member]);
    run.writes.push_back(target);
  }
  run.reads = {gather.gathered};
  run.task = add_task(draft, concat("unpack.", gather.block.value), std::move(graph));
  draft.actors[gather.group.actor].push_back(std::move(run));
}

// Next states that could not be written where they arose.
void copy_states(const After& a) {
  for (InputId s : written_whole(a)) {
    const ValueId next = a.p.graph().outputs[s.index()];
    if (!a.p.dependent(next) || a.p.in_place[s]) continue;
    Run copy;
    copy.opcode = Opcode::copy;
    copy.reads = {a.exported.at(next)};
    copy.writes = {{input_instance(a.input, a.draft, s), ResultMode::update}};
    a.draft.actors[a.p.state.home[s]].push_back(std::move(copy));
  }
}

void put_outputs(const After& a) {
  for (std::size_t o = first_output(a); o < a.p.graph().outputs.size(); ++o) {
    const ValueId v = a.p.graph().outputs[o];
    Run output;
    output.opcode = Opcode::output;
    output.port = static_cast<std::int32_t>(o - first_output(a));
    output.reads = {a.p.is_flat(v) ? a.whole.at(v) : a.exported.at(v)};
    a.draft.actors[ActorId(0)].push_back(std::move(output));
  }
}

// In a window's step what the passes before put behind the runs of an action belongs to it (a reduction), and all that is put behind the
// last action does not.
void take_into_actions(Draft& draft) {
  for (std::vector<Run>& runs : draft.actors)
    for (std::int32_t action = -1; Run & run : runs) {
      if (run.window.action >= 0) action = run.window.action;
      run.window.action = action;
    }
}

}  // namespace

void build_after(const LowerInput& input, Draft& draft) {
  if (input.is_step) take_into_actions(draft);
  After a{input, draft, find_places(input, draft)};
  for (const InputId s : a.p.state.home.ids()) draft.instances[input_instance(input, draft, s)].home = a.p.state.home[s];
  give_away(a);
  const IdVector<ValueId, bool> is_read = read_from_instances(a);
  for (const TaskGroup& key : a.groups) {  // by actor, then depth
    Outputs outputs;
    put_states(a, key, outputs);
    put_values(a, is_read, key, outputs);
    put_task(a, outputs, key);
  }
  for (std::vector<Run>& runs : draft.actors) std::erase_if(runs, [](const Run& run) { return run.placeholder; });
  for (const Gather& gather : a.gathers) unpack(draft, gather);
  copy_states(a);
  put_outputs(a);
  draft.uses.clear();
  draft.partials.clear();
}

}  // namespace penstock
