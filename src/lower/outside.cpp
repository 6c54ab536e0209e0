// Pass: the code before and after the loop, as tasks.
//
// What does not depend on the loop's results is cloned on every actor that needs it: before the loop where the loop reads it, else into
// the tasks after it. What does depend on them is one task for each group of find_places.
// A state's next value is written over it on its home, by the task that makes it where that is the last to read the present one; copies
// on other actors are refreshed at the end.
// What an actor's devices hold in shares (blocks.cpp) is worked on in shares: the runs made here are of whole tensors, spread_groups cuts
// them. Terms of sums are summed over the devices behind the task that makes them. What must be whole again (parameters where only their
// moments are in shares) is gathered, a block at a time, and written where it lies at the step's end.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/places.h"

namespace penstock {
namespace {

using Actor = std::int32_t;

class Outside {
 public:
  Outside(Lowering& lowering, Places places) : l_(lowering), p_(std::move(places)) {}

  void run() {
    set_homes();
    for (const auto& [group, ops] : p_.ops) groups_.insert(group);
    plan_outputs();
    plan_gathers();
    find_read_elsewhere();
    build_before();
    build_after();
    unpack_gathers();
    finish_state();
    emit_outputs();
    declare_ports();
  }

 private:
  const Instance& instance(std::int32_t i) const { return l_.draft.instances[static_cast<std::size_t>(i)]; }

  void set_homes() {
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const std::int32_t instance = l_.input(static_cast<std::int32_t>(s), -1);
      l_.draft.instances[static_cast<std::size_t>(instance)].home = p_.home[s];
    }
  }

  TaskGroup last_group(Actor actor) const {
    TaskGroup last{actor, 0, -1};
    for (const auto& [key, ops] : p_.ops)
      if (key.actor == actor && key.update < 0) last = std::max(last, key);
    return last;
  }

  // Values that tasks after the loop must give away: to other tasks, as next state, as outputs.
  void plan_outputs() {
    for (const auto& [key, ops] : p_.ops)
      for (std::size_t i : ops)
        for (ValueId v : p_.graph.ops[i].operands)
          if (p_.dependent[v.index()] && !p_.partial.count(v.value) && !p_.early.count(v.value) && p_.group[v.index()] != key)
            after_instance(v);
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) {
      const ValueId v = p_.graph.outputs[o];
      if (p_.in_shares(v)) continue;
      if (p_.dependent[v.index()]) {
        after_instance(v);
      } else {
        clones_[last_group(0)].insert(v.value);
      }
    }
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const ValueId next = p_.graph.outputs[s];
      if (next == p_.graph.inputs[s] || is_gathered(s)) continue;
      if (p_.dependent[next.index()]) {
        after_instance(next);
      } else {
        for (Actor actor : p_.holders[s]) clones_[last_group(actor)].insert(next.value);
      }
    }
  }

  // The instance of a value computed after the loop, single part; a partial sum that is itself asked for is copied out by a task.
  std::int32_t after_instance(ValueId v) {
    const TaskGroup& group = p_.group[v.index()];
    const auto [it, added] = exported_.try_emplace({v.value, group.actor}, -1);
    if (added) {
      Instance exported{Instance::Source::computed, concat("after:", v.value), {p_.type(v)}, group.actor, -1, -1};
      if (p_.in_shares(v)) {
        exported.block = p_.member[v.index()].block;
        exported.members = {p_.member[v.index()].index};
        exported.extent = Extent::device;
      }
      it->second = l_.add(std::move(exported));
      groups_.insert(group);
    }
    return it->second;
  }

  // Has every device, or node, more of the state than the share of its next value that it makes?
  bool is_gathered(std::size_t s) const {
    const ValueId next = p_.graph.outputs[s];
    return next != p_.graph.inputs[s] && p_.in_shares(next) && l_.extent_of(static_cast<std::int32_t>(s)) != Extent::device;
  }

  // Members of one block that arise in one task, and must be whole or as much as a node has.
  struct Gather {
    TaskGroup group;
    std::int32_t block;
    Extent extent;
    std::vector<ValueId> values;                            // of each member; none: not asked for
    std::vector<std::pair<std::int32_t, Write>> targets{};  // of members
    std::int32_t share = -1, gathered = -1;                 // instances
  };

  void plan_gathers() {
    for (std::size_t s = 0; s < p_.home.size(); ++s)
      if (is_gathered(s)) gather(p_.graph.outputs[s], {l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update});
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) {
      const ValueId v = p_.graph.outputs[o];
      if (!p_.in_shares(v) || whole_.contains(v.value)) continue;
      whole_[v.value] = l_.add({Instance::Source::computed, concat("whole:", v.value), {p_.type(v)}, p_.group[v.index()].actor, -1, -1});
      gather(v, {whole_[v.value]});
    }
  }

  void gather(ValueId v, Write target) {
    const Member member = p_.member[v.index()];
    const TaskGroup& group = p_.group[v.index()];
    const auto m = static_cast<std::size_t>(member.index);
    const Extent extent = instance(target.instance).extent;
    auto found = std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& gather) {
      return gather.group == group && gather.block == member.block && gather.extent == extent &&
             (!gather.values[m] || gather.values[m] == v);
    });
    if (found == gathers_.end()) {
      Gather made{group, member.block, extent, std::vector<ValueId>(l_.blocks[static_cast<std::size_t>(member.block)].members.size())};
      const std::string name = concat("next:", member.block, ".", gathers_.size());
      made.share = l_.add_block(member.block, group.actor, concat(name, ".share"), Extent::device);
      made.gathered = l_.add_block(member.block, group.actor, name, extent);
      found = gathers_.insert(gathers_.end(), std::move(made));
      groups_.insert(group);
    }
    found->values[m] = v;
    found->targets.push_back({member.index, target});
  }

  // What was gathered goes where it lies, when nothing reads any more what lies there.
  void unpack_gathers() {
    for (const Gather& gather : gathers_) {
      Graph graph;
      Run run;
      for (const TensorType& t : l_.blocks[static_cast<std::size_t>(gather.block)].members)
        graph.add_input(t, concat("x", graph.inputs.size()));
      for (const auto& [member, target] : gather.targets) {
        graph.outputs.push_back(graph.inputs[static_cast<std::size_t>(member)]);
        run.writes.push_back(target);
      }
      run.reads = {gather.gathered};
      run.task = l_.tasks.add(concat("unpack.", gather.block), std::move(graph));
      l_.draft.actors[static_cast<std::size_t>(gather.group.actor)].push_back(std::move(run));
    }
  }

  // One graph of the outside, built on demand from the values it is asked for.
  struct Fragment {
    TaskGroup group;
    bool after = true;  // the loop, or before it
    Graph graph{};
    std::vector<std::int32_t> reads{};
    std::unordered_map<std::int32_t, ValueId> local{};                 // value of the step: here
    std::map<std::pair<std::int32_t, std::int32_t>, ValueId> parts{};  // (instance, part): graph input
  };

  void import(Fragment& f, std::int32_t instance_number, std::int32_t part, ValueId value) {
    if (std::find(f.reads.begin(), f.reads.end(), instance_number) == f.reads.end()) {
      f.reads.push_back(instance_number);
      for (std::size_t p = 0; p < instance(instance_number).types.size(); ++p)
        f.parts[{instance_number, static_cast<std::int32_t>(p)}] =
            f.graph.add_input(instance(instance_number).types[p], concat("x", f.graph.inputs.size()));
    }
    f.local[value.value] = f.parts.at({instance_number, part});
  }

  ValueId need(Fragment& f, ValueId v) {
    if (const auto found = f.local.find(v.value); found != f.local.end()) return found->second;
    if (const auto partial = p_.partial.find(v.value); partial != p_.partial.end()) {
      import(f, partial->second.instance, partial->second.part, v);
    } else if (p_.input_index[v.index()] >= 0) {
      import(f, l_.input(p_.input_index[v.index()], -1), 0, v);
    } else if (const auto early = p_.early.find(v.value); early != p_.early.end() && p_.group[v.index()] != f.group) {
      import(f, l_.input(static_cast<std::int32_t>(early->second), -1), 0, v);
    } else if (p_.dependent[v.index()] && p_.group[v.index()] != f.group) {
      import(f, after_instance(v), 0, v);
    } else if (const auto before = before_.find({v.value, f.group.actor}); f.after && before != before_.end()) {
      import(f, before->second, 0, v);
    } else {
      copy(f, p_.graph.ops[p_.producer[v.index()].index()]);
    }
    return f.local.at(v.value);
  }

  void copy(Fragment& f, const Op& op) {
    Op out = op;
    for (ValueId& operand : out.operands) operand = need(f, operand);
    for (ValueId& result : out.results) {
      const ValueId old = result;
      result = f.graph.add_value(p_.type(old));
      f.local[old.value] = result;
    }
    f.graph.ops.push_back(std::move(out));
  }

  void build_before() {
    std::map<Actor, std::vector<LoopEnds::Use>> uses;
    for (const LoopEnds::Use& use : l_.ends.uses) uses[use.actor].push_back(use);
    for (const auto& [actor, list] : uses) {
      Fragment f{{actor, 0, -1}, false};
      Run run;
      for (const LoopEnds::Use& use : list) {
        const ValueId value = l_.loop_op().operands[static_cast<std::size_t>(use.operand)];
        ValueId output = need(f, value);
        if (use.microbatch >= 0) {
          output = part_of(f, output, use.microbatch);
        } else {
          before_[{value.value, actor}] = use.instance;
        }
        f.graph.outputs.push_back(output);
        run.writes.push_back({use.instance, ResultMode::store});
      }
      run.reads = f.reads;
      run.task = l_.tasks.add(concat("before.", actor), std::move(f.graph));
      std::vector<Run>& runs = l_.draft.actors[static_cast<std::size_t>(actor)];
      runs.insert(runs.begin(), std::move(run));
    }
  }

  ValueId part_of(Fragment& f, ValueId whole, std::int32_t microbatch) const {
    TensorType part = f.graph.type(whole);
    part.shape[0] /= l_.program.microbatches;
    Op slice;
    slice.name = "slice";
    slice.operands = {whole};
    slice.attributes = {{"dim", std::int64_t{0}},
                        {"start", microbatch * part.shape[0]},
                        {"end", (microbatch + 1) * part.shape[0]},
                        {"step", std::int64_t{1}}};
    slice.results = {f.graph.add_value(part)};
    f.graph.ops.push_back(slice);
    return slice.results[0];
  }

  void build_after() {
    for (const auto& [key, values] : clones_) groups_.insert(key);
    for (const TaskGroup& key : groups_) {  // by actor, then depth
      Fragment f{key};
      if (const auto ops = p_.ops.find(key); ops != p_.ops.end())
        for (std::size_t i : ops->second)
          if (!f.local.count(p_.graph.ops[i].results[0].value)) copy(f, p_.graph.ops[i]);
      Run run;
      const auto give = [&](ValueId v, std::int32_t target, ResultMode mode) {
        f.graph.outputs.push_back(need(f, v));
        run.writes.push_back({target, mode});
      };
      give_state(key, give);
      give_early(key, give);
      give_values(key, give);
      for (const Gather& gather : gathers_)
        if (gather.group == key) give_share(gather, f, run);
      if (f.graph.outputs.empty()) continue;
      run.reads = f.reads;
      const std::string name = key.update < 0 ? concat("after.", key.actor, ".", key.depth, key.alone ? ".alone" : "")
                                              : concat("U", key.update, key.ahead ? ".ahead" : "");
      run.task = l_.tasks.add(name, std::move(f.graph));
      put(key, std::move(run));
      put_collectives(key);
    }
    for (std::vector<Run>& runs : l_.draft.actors) std::erase_if(runs, [](const Run& run) { return run.placeholder; });
  }

  void give_share(const Gather& gather, Fragment& f, Run& run) {
    const std::vector<TensorType>& types = l_.blocks[static_cast<std::size_t>(gather.block)].members;
    for (std::size_t m = 0; m < types.size(); ++m) {
      ValueId value = gather.values[m] ? need(f, gather.values[m]) : ValueId();
      if (!value) {  // not asked for, but it has its place
        value = f.graph.add_value(types[m]);
        Op zeros{.name = "full",
                 .operands = {},
                 .results = {value},
                 .attributes = {},
                 .stage = {},
                 .phase = {},
                 .origin = {},
                 .sequence = -1,
                 .body = {}};
        zeros.attributes = {{"dtype", types[m].dtype}, {"fill_value", 0.0}, {"size", types[m].shape}};
        f.graph.ops.push_back(std::move(zeros));
      }
      f.graph.outputs.push_back(value);
    }
    run.writes.push_back({gather.share, ResultMode::store});
  }

  // Behind the task: its terms are summed over the devices, its shares given to all.
  void put_collectives(const TaskGroup& key) {
    const auto collective = [&](Opcode opcode, std::int32_t from, Write to) {
      Run run;
      run.opcode = opcode;
      run.reads = {from};
      run.writes = {to};
      put(key, std::move(run));
    };
    for (const auto& [where, number] : exported_)
      if (const ValueId v(where.first); p_.is_term[v.index()] && p_.group[v.index()] == key)
        collective(Opcode::all_reduce, number, {number, ResultMode::update});
    for (const Gather& gather : gathers_)
      if (gather.group == key) collective(Opcode::all_gather, gather.share, {gather.gathered});
  }

  // At the end of the actor's runs, or in the place of its stage's U: what updates ahead behind the rest.
  void put(const TaskGroup& group, Run run) {
    std::vector<Run>& runs = l_.draft.actors[static_cast<std::size_t>(group.actor)];
    if (group.update < 0) return runs.push_back(std::move(run));
    const auto place =
        std::find_if(runs.begin(), runs.end(), [&](const Run& other) { return other.placeholder && other.stage == group.update; });
    invariant(place != runs.end(), "an update group has its U");
    run.kind = Kind::U;
    run.stage = group.update;
    run.action = true;
    runs.insert(place, std::move(run));
  }

  // Next states that this task may write in place: it is the last on its actor that reads the present one.
  template <class Give>
  void give_state(const TaskGroup& key, const Give& give) {
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const ValueId next = p_.graph.outputs[s];
      if (next == p_.graph.inputs[s] || is_gathered(s)) continue;
      if (!p_.dependent[next.index()]) {
        if (p_.holders[s].count(key.actor) && key == last_group(key.actor))
          give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      } else if (p_.group[next.index()] == key && p_.in_place[s]) {
        give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      }
    }
  }

  template <class Give>
  void give_early(const TaskGroup& key, const Give& give) {
    for (const auto& [value, s] : p_.early)
      if (p_.group[ValueId(value).index()] == key) give(ValueId(value), l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
  }

  template <class Give>
  void give_values(const TaskGroup& key, const Give& give) {
    for (const auto& [where, number] : exported_) {
      const ValueId v(where.first);
      if (p_.group[v.index()] == key && read_elsewhere_[v.index()]) give(v, number, ResultMode::store);
    }
    const auto clones = clones_.find(key);
    if (clones == clones_.end() || key.actor != 0) return;
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) {
      const ValueId v = p_.graph.outputs[o];
      if (p_.dependent[v.index()] || exported_.count({v.value, 0})) continue;
      const std::int32_t number = l_.add({Instance::Source::computed, concat("after:", v.value), {p_.type(v)}, 0, -1, -1});
      exported_[{v.value, 0}] = number;
      give(v, number, ResultMode::store);
    }
  }

  // Values that are read from their instances: by another task, as outputs, or to be copied over a state.
  void find_read_elsewhere() {
    read_elsewhere_.assign(p_.graph.values.size(), false);
    for (const auto& [key, ops] : p_.ops)
      for (std::size_t i : ops)
        for (ValueId operand : p_.graph.ops[i].operands)
          if (p_.group[operand.index()] != key && !p_.early.count(operand.value)) read_elsewhere_[operand.index()] = true;
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o)
      if (!p_.in_shares(p_.graph.outputs[o])) read_elsewhere_[p_.graph.outputs[o].index()] = true;
    for (std::size_t s = 0; s < p_.home.size(); ++s)
      if (!is_gathered(s) && !p_.in_place[s]) read_elsewhere_[p_.graph.outputs[s].index()] = true;
  }

  // Next states that could not be written where they arose, and copies of what only the owner updated.
  void finish_state() {
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const ValueId next = p_.graph.outputs[s];
      if (next == p_.graph.inputs[s] || !p_.dependent[next.index()] || is_gathered(s)) continue;
      const std::int32_t state = l_.input(static_cast<std::int32_t>(s), -1);
      if (!p_.in_place[s]) {
        Run copy;
        copy.opcode = Opcode::copy;
        copy.reads = {after_instance(next)};
        copy.writes = {{state, ResultMode::update}};
        l_.draft.actors[static_cast<std::size_t>(p_.home[s])].push_back(std::move(copy));
      }
      if (p_.holders[s].size() > 1) l_.draft.refreshed.push_back(state);
    }
  }

  void emit_outputs() {
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) {
      const ValueId v = p_.graph.outputs[o];
      Run output;
      output.opcode = Opcode::output;
      output.port = static_cast<std::int32_t>(o) - p_.graph.state;
      output.reads = {p_.in_shares(v) ? whole_.at(v.value)
                                      : exported_.at({v.value, p_.dependent[v.index()] ? p_.group[v.index()].actor : 0})};
      l_.draft.actors[0].push_back(std::move(output));
    }
  }

  void declare_ports() {
    const auto split = static_cast<std::size_t>(attribute<std::int64_t>(l_.loop_op(), "split"));
    for (std::size_t i = static_cast<std::size_t>(p_.graph.state); i < p_.graph.inputs.size(); ++i) {
      const Value& value = p_.graph.values[p_.graph.inputs[i].index()];
      const auto& operands = l_.loop_op().operands;
      const bool is_split = std::find(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(split), p_.graph.inputs[i]) !=
                            operands.begin() + static_cast<std::ptrdiff_t>(split);
      l_.program.data.push_back({value.name, value.type, is_split});
    }
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) {
      const std::size_t index = o - static_cast<std::size_t>(p_.graph.state);
      l_.program.outputs.push_back({index < p_.graph.output_names.size() ? p_.graph.output_names[index] : concat("output", index),
                                    p_.type(p_.graph.outputs[o]), false});
    }
  }

  Lowering& l_;
  const Places p_;
  std::set<TaskGroup> groups_;                          // that get a task: those of ops, and of what is only given away
  std::map<TaskGroup, std::set<std::int32_t>> clones_;  // independent values asked for there
  std::vector<bool> read_elsewhere_;                    // of each value
  std::vector<Gather> gathers_;
  std::map<std::int32_t, std::int32_t> whole_;                       // value held in shares that the step puts out: its instance
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> exported_;  // (value, actor): instance
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> before_;    // (value, actor): instance, computed before the loop
};

}  // namespace

void place_outside(Lowering& lowering) {
  Outside(lowering, find_places(lowering)).run();
}

}  // namespace penstock
