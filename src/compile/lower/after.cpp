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

// The values that the tasks hand on to other tasks, to states or to outputs.
struct Given {
  std::map<ValueId, InstanceId> exported;         // to other tasks, as next states, as outputs
  std::map<ValueId, InstanceId> whole;            // outputs that are held in shares
  std::map<TaskGroup, std::set<ValueId>> clones;  // values that depend on no loop result, asked for there
  std::vector<Gather> gathers;
  std::set<TaskGroup> groups;  // that get a task: those of ops, and of what is only given away
};

std::size_t first_output(const Places& p) {
  return p.graph().state;
}

// Has every device, or host, more of the state than the share of its next value that it makes?
bool is_gathered(const LowerInput& input, const Draft& draft, const Places& p, InputId state) {
  const ValueId next = p.graph().outputs[state.index()];
  return next != p.graph().inputs[state.index()] && p.is_flat(next) && holding_of(input, draft, state) != device_share(input);
}

// States that a task writes the next value of, or that are copied over.
std::vector<InputId> written_whole(const LowerInput& input, const Draft& draft, const Places& p) {
  std::vector<InputId> out;
  for (const InputId s : p.in_place.ids())
    if (p.graph().outputs[s.value] != p.graph().inputs[s.value] && !is_gathered(input, draft, p, s)) out.push_back(s);
  return out;
}

TaskGroup last_group(const Places& p, ActorId actor) {
  TaskGroup last{actor};
  for (const auto& [key, ops] : p.ops)
    if (key.actor == actor && !key.update) last = std::max(last, key);
  return last;
}

// Gives a value computed after the loop an instance; a partial sum that is itself asked for is copied out by a task.
void give_away(const LowerInput& input, Draft& draft, const Places& p, Given& given, ValueId v) {
  const auto [it, added] = given.exported.try_emplace(v);
  if (!added) return;
  Instance exported;
  exported.name = concat("after:", v.value);
  exported.types = {p.type(v)};
  exported.home = p.group(v).actor;
  if (p.is_flat(v)) {
    const Member member = member_of(draft, p, v);
    exported.block = member.block;
    exported.members = {member.index};
    exported.held = device_share(input);
  }
  it->second = add(draft, std::move(exported));
  given.groups.insert(p.group(v));
}

// A collective along an axis has an instance for what it reads and one for what it makes.
void give_to_collectives(const LowerInput& input, Draft& draft, const Places& p, Given& given) {
  for (const auto& [key, ops] : p.collectives)
    for (std::size_t i : ops)
      for (ValueId v : {p.graph().ops[i].operands[0], p.graph().ops[i].results[0]}) give_away(input, draft, p, given, v);
}

void give_to_others(const LowerInput& input, Draft& draft, const Places& p, Given& given) {
  for (const auto& [key, ops] : p.ops)
    for (std::size_t i : ops)
      for (ValueId v : p.graph().ops[i].operands)
        if (p.dependent(v) && !p.outside.partial.contains(v) && !p.early.contains(v) && p.group(v) != key)
          give_away(input, draft, p, given, v);
  for (std::size_t o = first_output(p); o < p.graph().outputs.size(); ++o) {
    const ValueId v = p.graph().outputs[o];
    if (p.is_flat(v)) continue;
    if (p.dependent(v))
      give_away(input, draft, p, given, v);
    else
      given.clones[last_group(p, ActorId(0))].insert(v);
  }
  for (InputId s : written_whole(input, draft, p)) {
    const ValueId next = p.graph().outputs[s.index()];
    if (p.dependent(next)) {
      give_away(input, draft, p, given, next);
      continue;
    }
    for (ActorId actor : p.state.holders[s]) given.clones[last_group(p, actor)].insert(next);
  }
}

void gather(const LowerInput& input, Draft& draft, const Places& p, Given& given, ValueId v, Write target) {
  const Member member = member_of(draft, p, v);
  const TaskGroup& group = p.group(v);
  const std::size_t m = member.index;
  const Holding held = draft.instances[target.instance].held;
  auto found = std::ranges::find_if(given.gathers, [&](const Gather& other) {
    return other.group == group && other.block == member.block && other.held == held && (!other.values[m] || other.values[m] == v);
  });
  if (found == given.gathers.end()) {
    Gather made{group, member.block, held, std::vector<ValueId>(draft.blocks[member.block].members.size())};
    const std::string name = concat("next:", member.block.value, ".", given.gathers.size());
    made.share = add_block(draft, member.block, group.actor, concat(name, ".share"), device_share(input));
    made.gathered = add_block(draft, member.block, group.actor, name, held);
    found = given.gathers.insert(given.gathers.end(), std::move(made));
    given.groups.insert(group);
  }
  found->values[m] = v;
  found->targets.push_back({member.index, target});
}

void give_to_gathers(const LowerInput& input, Draft& draft, const Places& p, Given& given) {
  for (const InputId s : p.in_place.ids())
    if (is_gathered(input, draft, p, s))
      gather(input, draft, p, given, p.graph().outputs[s.value], {input_instance(input, draft, s), ResultMode::update});
  for (std::size_t o = first_output(p); o < p.graph().outputs.size(); ++o) {
    const ValueId v = p.graph().outputs[o];
    if (!p.is_flat(v) || given.whole.contains(v)) continue;
    Instance whole;
    whole.name = concat("whole:", v.value);
    whole.types = {p.type(v)};
    whole.home = p.group(v).actor;
    given.whole[v] = add(draft, std::move(whole));
    gather(input, draft, p, given, v, {given.whole[v]});
  }
}

Given given_away(const LowerInput& input, Draft& draft, const Places& p) {
  Given given;
  for (const auto& [group, ops] : p.ops) given.groups.insert(group);
  give_to_collectives(input, draft, p, given);
  give_to_others(input, draft, p, given);
  give_to_gathers(input, draft, p, given);
  for (const auto& [key, values] : given.clones) given.groups.insert(key);
  return given;
}

// Values that are read from their instances: by another task, as outputs, or to be copied over a state.
IdVector<ValueId, bool> read_from_instances(const LowerInput& input, const Draft& draft, const Places& p) {
  IdVector<ValueId, bool> out(p.graph().values.size());
  for (const auto& [key, ops] : p.ops)
    for (std::size_t i : ops)
      for (ValueId v : p.graph().ops[i].operands)
        if (p.group(v) != key && !p.early.contains(v)) out[v] = true;
  for (const auto& [key, ops] : p.collectives)
    for (std::size_t i : ops) out[p.graph().ops[i].operands[0]] = true;
  for (std::size_t o = first_output(p); o < p.graph().outputs.size(); ++o)
    if (!p.is_flat(p.graph().outputs[o])) out[p.graph().outputs[o]] = true;
  for (const InputId s : p.in_place.ids())
    if (!p.in_place[s] && !is_gathered(input, draft, p, s)) out[p.graph().outputs[s.value]] = true;
  return out;
}

using Outputs = std::vector<std::pair<ValueId, Write>>;

// Next states that the group's task may write in place: it is the last on its actor that reads the present one.
void put_states(const LowerInput& input, Draft& draft, const Places& p, const TaskGroup& key, Outputs& out) {
  for (InputId s : written_whole(input, draft, p)) {
    const ValueId next = p.graph().outputs[s.index()];
    const bool here = p.dependent(next) ? p.group(next) == key && p.in_place[s]
                                        : p.state.holders[s].contains(key.actor) && key == last_group(p, key.actor);
    if (here) out.push_back({next, {input_instance(input, draft, s), ResultMode::update}});
  }
  for (const auto& [value, s] : p.early)
    if (p.group(value) == key) out.push_back({value, {input_instance(input, draft, s), ResultMode::update}});
}

// Values that others read, and on actor 0 the outputs that depend on no loop result.
void put_values(Draft& draft, const Places& p, const IdVector<ValueId, bool>& is_read, const TaskGroup& key, Given& given, Outputs& out) {
  for (const auto& [v, instance] : given.exported)
    if (p.group(v) == key && is_read[v] && !p.value.arrives[v]) out.push_back({v, {instance}});
  if (!given.clones.contains(key) || key.actor != ActorId(0)) return;
  for (std::size_t o = first_output(p); o < p.graph().outputs.size(); ++o) {
    const ValueId v = p.graph().outputs[o];
    if (p.dependent(v) || given.exported.contains(v)) continue;
    Instance made;
    made.name = concat("after:", v.value);
    made.types = {p.type(v)};
    made.home = ActorId(0);
    given.exported[v] = add(draft, std::move(made));
    out.push_back({v, {given.exported[v]}});
  }
}

// Where a group's task reads values from.
FindInstance sources(const LowerInput& input, Draft& draft, const Places& p, const Given& given, const TaskGroup& key) {
  std::map<ValueId, InstanceId> before;
  for (const LoopUse& use : draft.uses)
    if (!use.unit && use.actor == key.actor) before[input.loop_op().operands[use.operand]] = use.instance;
  return [&input, &draft, &p, &given, key, before = std::move(before)](ValueId v) -> std::optional<InstancePart> {
    if (const auto partial = p.outside.partial.find(v); partial != p.outside.partial.end())
      return InstancePart{partial->second.instance, partial->second.part};
    if (const InputId from = p.value.input[v]) return InstancePart{input_instance(input, draft, from)};
    if (const auto early = p.early.find(v); early != p.early.end() && p.group(v) != key)
      return InstancePart{input_instance(input, draft, early->second)};
    if (p.dependent(v) && p.group(v) != key) return InstancePart{given.exported.at(v)};
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
void put_collectives(const LowerInput& input, Draft& draft, const Places& p, const Given& given, const TaskGroup& key) {
  const auto collective = [&](Opcode opcode, InstanceId from, Write to) {
    Run run;
    run.opcode = opcode;
    run.reads = {from};
    run.writes = {to};
    put(draft, key, std::move(run));
  };
  for (const auto& [v, instance] : given.exported)
    if (p.value.layout[v].is_term() && p.group(v) == key) collective(Opcode::all_reduce, instance, {instance, ResultMode::update});
  for (const Gather& gather : given.gathers)
    if (gather.group == key) collective(Opcode::all_gather, gather.share, {gather.gathered});
  const auto along_axes = p.collectives.find(key);
  if (along_axes == p.collectives.end()) return;
  for (std::size_t i : along_axes->second) {
    const Op& op = p.graph().ops[i];
    Run run;
    make_collective(input, op, run);
    run.reads = {given.exported.at(op.operands[0])};
    run.writes = {{given.exported.at(op.results[0])}};
    put(draft, key, std::move(run));
  }
}

void put_task(const LowerInput& input, Draft& draft, const Places& p, const Outputs& outputs, const Given& given, const TaskGroup& key) {
  Fragment fragment(p.graph(), p.value.producer);
  const FindInstance find = sources(input, draft, p, given, key);
  if (const auto ops = p.ops.find(key); ops != p.ops.end())
    for (std::size_t i : ops->second) fragment.copy(draft, p.graph().ops[i], find);
  Run run;
  for (const auto& [value, write] : outputs) {
    fragment.graph.outputs.push_back(fragment.need(draft, value, find));
    run.writes.push_back(write);
  }
  for (const Gather& gather : given.gathers)
    if (gather.group == key) put_share(draft, gather, fragment, find, run);
  if (fragment.graph.outputs.empty()) return;
  run.reads = fragment.reads;
  const std::string name = key.update ? concat("U", key.update.value, key.ahead ? ".ahead" : "")
                                      : concat("after.", key.actor.value, ".", key.depth, key.alone ? ".alone" : "");
  run.task = add_task(draft, name, std::move(fragment.graph));
  put(draft, key, std::move(run));
  put_collectives(input, draft, p, given, key);
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
void copy_states(const LowerInput& input, Draft& draft, const Places& p, const Given& given) {
  for (InputId s : written_whole(input, draft, p)) {
    const ValueId next = p.graph().outputs[s.index()];
    if (!p.dependent(next) || p.in_place[s]) continue;
    Run copy;
    copy.opcode = Opcode::copy;
    copy.reads = {given.exported.at(next)};
    copy.writes = {{input_instance(input, draft, s), ResultMode::update}};
    draft.actors[p.state.home[s]].push_back(std::move(copy));
  }
}

void put_outputs(Draft& draft, const Places& p, const Given& given) {
  for (std::size_t o = first_output(p); o < p.graph().outputs.size(); ++o) {
    const ValueId v = p.graph().outputs[o];
    Run output;
    output.opcode = Opcode::output;
    output.port = static_cast<std::int32_t>(o - first_output(p));
    output.reads = {p.is_flat(v) ? given.whole.at(v) : given.exported.at(v)};
    draft.actors[ActorId(0)].push_back(std::move(output));
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
  const Places p = find_places(input, draft);
  for (const InputId s : p.state.home.ids()) draft.instances[input_instance(input, draft, s)].home = p.state.home[s];
  Given given = given_away(input, draft, p);
  const IdVector<ValueId, bool> is_read = read_from_instances(input, draft, p);
  for (const TaskGroup& key : given.groups) {  // by actor, then depth
    Outputs outputs;
    put_states(input, draft, p, key, outputs);
    put_values(draft, p, is_read, key, given, outputs);
    put_task(input, draft, p, outputs, given, key);
  }
  for (std::vector<Run>& runs : draft.actors) std::erase_if(runs, [](const Run& run) { return run.placeholder; });
  for (const Gather& gather : given.gathers) unpack(draft, gather);
  copy_states(input, draft, p, given);
  put_outputs(draft, p, given);
  draft.uses.clear();
  draft.partials.clear();
}

}  // namespace penstock
