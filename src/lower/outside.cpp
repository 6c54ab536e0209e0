// Pass: the code before and after the loop, and where state lives.
//
// What does not depend on the loop's results is cloned on every actor that needs it (before the loop where the loop reads it, else
// into the tasks after it). What does depend on them runs where it moves the fewest bytes; the ops of one actor that can run without
// hearing from another actor in between are one task:
//   depth(op) = max over its operands of (0 for the loop's, depth(operand) + (1 if it lies on another actor))
// What another actor waits for is a task before the rest of its depth: the factor that clips is on its way before the first update begins.
// Where the table has a U of a stage, what needs that stage's accumulators alone is a task of its own and runs there, before the loop of
// the actor has ended; what needs to know of other stages (clipping by the global norm) stays after the loop.
// A state that is updated ahead of that (adamw_ahead) is written over there too, and once more, after the loop, by the op that validates it
// (OpDefinition::revises). What a stage adds to the norm is a task before the one that updates ahead, so that it is sent meanwhile.
// State is owned by one actor, its next value is written over it there; actors that only read it have copies, refreshed at the end.
// What an actor's devices hold in shares (blocks.cpp) is worked on in shares: the runs made here are of whole tensors, spread_groups cuts
// them. A sum over all elements is then one term on each device. What reads it is a later task, as if it came from elsewhere: the terms are
// summed in between. What must be whole again (parameters where only their moments are in shares) is gathered, a block at a time, and
// written where it lies at the step's end.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/ahead.h"
#include "lower/draft.h"
#include "ops/definition.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Actor = std::int32_t;

// Ops that run together after the loop, or, with a stage, at that stage's U.
struct Group {
  Actor actor = -1;
  std::int32_t depth = 0;
  std::int32_t update = -1;  // the stage
  bool ahead = false;        // the second task of a U: what updates ahead, or needs to know of that
  bool alone = false;        // the second task of a depth: what no other actor waits for
  auto operator<=>(const Group&) const = default;
};

struct Place {
  Actor actor = -1;
  std::int32_t instance = -1, part = 0;
  std::int32_t stage = -1;
};

class Outside {
 public:
  explicit Outside(Lowering& lowering) : l_(lowering), graph_(lowering.step) {}

  void run() {
    split_graph();
    producer_ = producers(graph_);
    find_dependent();
    find_state_readers();
    update_once();
    find_members();
    join_terms();
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      if (dependent_op(i)) place(i);
    set_apart();
    settle_state();
    find_early();
    plan_outputs();
    plan_gathers();
    build_before();
    build_after();
    unpack_gathers();
    finish_state();
    emit_outputs();
    declare_ports();
  }

 private:
  const TensorType& type(ValueId v) const { return graph_.type(v); }
  bool dependent_op(std::size_t i) const { return !graph_.ops[i].results.empty() && dependent_[graph_.ops[i].results[0].index()]; }
  const Instance& instance(std::int32_t i) const { return l_.draft.instances[static_cast<std::size_t>(i)]; }

  // The step without its loop: results with one partial sum are that; others are add_n of the partial sums of their actors.
  void split_graph() {
    const Op loop = graph_.ops[l_.loop];
    std::map<std::int32_t, std::vector<LoopEnds::Partial>> partials;
    for (const LoopEnds::Partial& partial : l_.ends.partials) partials[partial.result].push_back(partial);
    std::vector<Op> sums;
    for (std::size_t r = 0; r < loop.results.size(); ++r) {
      std::vector<LoopEnds::Partial>& parts = partials[static_cast<std::int32_t>(r)];
      invariant(!parts.empty(), "a loop result has no accumulator");
      if (parts.size() == 1) {
        partial_[loop.results[r].value] = {parts[0].actor, parts[0].instance, parts[0].part, parts[0].stage};
        continue;
      }
      std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.actor < b.actor; });
      Op sum;
      sum.name = "add_n";
      sum.results = {loop.results[r]};
      for (const LoopEnds::Partial& part : parts) {
        const TensorType partial_type = type(loop.results[r]);
        sum.operands.push_back(graph_.add_value(partial_type));
        partial_[sum.operands.back().value] = {part.actor, part.instance, part.part, part.stage};
      }
      sums.push_back(std::move(sum));
    }
    graph_.ops.erase(graph_.ops.begin() + static_cast<std::ptrdiff_t>(l_.loop));
    graph_.ops.insert(graph_.ops.begin() + static_cast<std::ptrdiff_t>(l_.loop), sums.begin(), sums.end());
  }

  void find_dependent() {
    dependent_.assign(graph_.values.size(), false);
    for (const auto& [value, place] : partial_) dependent_[static_cast<std::size_t>(value)] = true;
    for (const Op& op : graph_.ops) {
      const bool any = std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return dependent_[v.index()]; });
      for (ValueId result : op.results) dependent_[result.index()] = any;
    }
    group_.assign(graph_.values.size(), {});
    const std::set<std::pair<Actor, std::int32_t>> updates = find_updates();
    for (const auto& [value, place] : partial_)
      group_[static_cast<std::size_t>(value)] = {place.actor, 0, updates.contains({place.actor, place.stage}) ? place.stage : -1};
    input_index_.assign(graph_.values.size(), -1);
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) input_index_[graph_.inputs[i].index()] = static_cast<std::int32_t>(i);
  }

  // Actors and stages of the table's U.
  std::set<std::pair<Actor, std::int32_t>> find_updates() const {
    std::set<std::pair<Actor, std::int32_t>> updates;
    for (Actor actor = 0; actor < l_.actors(); ++actor)
      for (const Run& run : l_.draft.actors[static_cast<std::size_t>(actor)])
        if (run.placeholder) updates.emplace(actor, run.stage);
    return updates;
  }

  // A state's owner is the actor that runs the first stage reading it.
  void find_state_readers() {
    home_.assign(static_cast<std::size_t>(graph_.state), -1);
    holders_.resize(home_.size());
    reading_stages_.resize(home_.size());
    std::vector<std::int32_t> state_of(l_.draft.instances.size(), -1), first_stage(home_.size());
    for (const auto& [key, instance] : l_.inputs)
      if (key.first < graph_.state) state_of[static_cast<std::size_t>(instance)] = key.first;
    for (Actor actor = 0; actor < l_.actors(); ++actor)
      for (const Run& run : l_.draft.actors[static_cast<std::size_t>(actor)])
        for (std::int32_t read : run.reads) {
          const std::int32_t state = state_of[static_cast<std::size_t>(read)];
          if (state < 0) continue;
          const auto s = static_cast<std::size_t>(state);
          holders_[s].insert(actor);
          reading_stages_[s].insert(run.stage);
          if (home_[s] < 0 || run.stage < first_stage[s]) {
            home_[s] = actor;
            first_stage[s] = run.stage;
          }
        }
    // What is computed before the loop from state needs it there too.
    for (const LoopEnds::Use& use : l_.ends.uses) hold_states(l_.loop_op().operands[static_cast<std::size_t>(use.operand)], use.actor);
  }

  // Where there is no U to update ahead in, or other stages read the state, nothing is gained by that: back to one update at the end.
  void update_once() {
    const auto early = [&](const Op& ahead) {
      const auto gradient = partial_.find(ahead.operands[1].value);
      const std::int32_t state = input_index_[ahead.operands[0].index()];
      if (gradient == partial_.end() || state < 0 || state >= graph_.state) return false;
      if (instance(gradient->second.instance).sharded && !l_.sharded_states.contains(state)) return false;  // written at the step's end
      return group_[ahead.operands[1].index()].update >= 0 && !read_by_others(state, gradient->second.stage);
    };
    update_ahead_only_where(graph_, early);
    producer_ = producers(graph_);
    find_dependent();
  }

  bool in_shares(ValueId v) const { return member_[v.index()].block >= 0; }
  bool has_shares(const Op& op) const {
    return std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return in_shares(v); });
  }

  // Values that devices hold in shares, and the terms that each has of sums over them.
  void find_members() {
    member_.assign(graph_.values.size(), {});
    is_term_.assign(graph_.values.size(), false);
    origin_ = group_;
    for (const auto& [value, place] : partial_) {
      const Instance& from = instance(place.instance);
      if (from.sharded) member_[static_cast<std::size_t>(value)] = {from.block, from.members[static_cast<std::size_t>(place.part)]};
    }
    for (const auto& [state, member] : l_.sharded_states) member_[graph_.inputs[static_cast<std::size_t>(state)].index()] = member;
    for (const Op& op : graph_.ops) {
      const auto from =
          std::find_if(op.operands.begin(), op.operands.end(), [&](ValueId v) { return in_shares(v) && dependent_[v.index()]; });
      if (from == op.operands.end()) continue;
      const bool sums = share_rule(graph_, op) == ShareRule::sum;
      for (ValueId result : op.results) {
        is_term_[result.index()] = sums;
        origin_[result.index()] = origin_[from->index()];
        if (!sums) member_[result.index()] = member_[from->index()];
      }
    }
  }

  // Of terms that are added up with others, those that arise in one task are added up there: then there is one to be summed over the
  // devices.
  void join_terms() {
    std::vector<Op> ops;
    for (Op& op : graph_.ops) {
      if (op.name == "add_n") {
        std::map<Group, std::vector<ValueId>> terms;
        std::vector<ValueId> operands;
        for (ValueId v : op.operands) {
          if (is_term_[v.index()])
            terms[origin_[v.index()]].push_back(v);
          else
            operands.push_back(v);
        }
        for (const auto& [group, list] : terms) {
          Op joined = op;
          joined.operands = list;
          joined.results = {graph_.add_value(type(op.results[0]))};
          operands.push_back(joined.results[0]);
          ops.push_back(std::move(joined));
        }
        op.operands = std::move(operands);
      }
      ops.push_back(std::move(op));
    }
    graph_.ops = std::move(ops);
    producer_ = producers(graph_);
    find_dependent();
    find_members();
  }

  bool read_by_others(std::int32_t state, std::int32_t stage) const {
    const std::set<std::int32_t>& stages = reading_stages_[static_cast<std::size_t>(state)];
    return std::any_of(stages.begin(), stages.end(), [&](std::int32_t reader) { return reader != stage; });
  }

  void collect_states(ValueId value, std::set<std::int32_t>& out) const {
    const std::int32_t input = input_index_[value.index()];
    if (input >= 0 && input < graph_.state) out.insert(input);
    if (const OpId op = producer_[value.index()])
      for (ValueId operand : graph_.ops[op.index()].operands) collect_states(operand, out);
  }

  std::int64_t bytes_moved(const Op& op, Actor actor, std::int32_t state) const {
    std::int64_t bytes = 0;
    for (ValueId v : op.operands) {
      const std::int32_t input = input_index_[v.index()];
      if (dependent_[v.index()]) {
        if (group_[v.index()].actor != actor) bytes += type(v).bytes();
      } else if (input >= 0 && input < graph_.state) {
        const auto s = static_cast<std::size_t>(input);
        if (home_[s] >= 0 && !holders_[s].count(actor)) bytes += type(v).bytes();
      }
    }
    if (state >= 0 && home_[static_cast<std::size_t>(state)] >= 0 && home_[static_cast<std::size_t>(state)] != actor)
      bytes += type(op.results[0]).bytes();
    return bytes;
  }

  void place(std::size_t i) {
    const Op& op = graph_.ops[i];
    const std::int32_t state = written_state(i);
    Actor best = -1;
    std::int64_t best_bytes = 0;
    std::set<Actor> candidates;
    for (ValueId v : op.operands)
      if (dependent_[v.index()] && (in_shares(v) || !has_shares(op))) candidates.insert(group_[v.index()].actor);
    if (!has_shares(op) && state >= 0 && home_[static_cast<std::size_t>(state)] >= 0)
      candidates.insert(home_[static_cast<std::size_t>(state)]);
    for (Actor actor : candidates) {
      const std::int64_t bytes = bytes_moved(op, actor, state);
      if (best < 0 || bytes < best_bytes) {
        best = actor;
        best_bytes = bytes;
      }
    }
    const Group group = group_of(op, best, state);
    for (ValueId result : op.results) {
      group_[result.index()] = group;
      is_term_[result.index()] = is_term_[result.index()] || adds_terms(op);
    }
    // State that only this op needs (Adam's moments) lives where the op runs.
    for (ValueId v : op.operands) hold_states(v, best);
    after_[group].push_back(i);
  }

  // Splits each depth of an actor into what other actors wait for, and what it needs itself, and the rest.
  void set_apart() {
    std::vector<bool> awaited = is_term_;
    for (std::size_t i = graph_.ops.size(); i-- > 0;) {
      const Op& op = graph_.ops[i];
      if (!dependent_op(i)) continue;
      const Group& group = group_[op.results[0].index()];
      const bool needed = std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return awaited[v.index()]; });
      for (ValueId v : op.operands) {
        if (!dependent_[v.index()]) continue;
        const Group& from = group_[v.index()];
        if (from.actor != group.actor || (needed && from == group)) awaited[v.index()] = true;
      }
    }
    const auto needed = [&](std::size_t i) {
      const std::vector<ValueId>& results = graph_.ops[i].results;
      return std::any_of(results.begin(), results.end(), [&](ValueId v) { return awaited[v.index()]; });
    };
    std::map<Group, std::vector<std::size_t>> after;
    for (const auto& [key, ops] : after_) {
      const bool splits = key.update < 0 && std::any_of(ops.begin(), ops.end(), needed);
      for (std::size_t i : ops) {
        Group group = key;
        group.alone = splits && !needed(i);
        for (ValueId result : graph_.ops[i].results) group_[result.index()] = group;
        after[group].push_back(i);
      }
    }
    after_ = std::move(after);
  }

  // Does it only add up terms that arise in one task?
  bool adds_terms(const Op& op) const {
    const auto alike = [&](ValueId v) { return is_term_[v.index()] && group_[v.index()] == group_[op.operands[0].index()]; };
    return op.name == "add_n" && std::all_of(op.operands.begin(), op.operands.end(), alike);
  }

  Group group_of(const Op& op, Actor actor, std::int32_t state) const {
    Group group{actor, 0, -2};
    for (ValueId v : op.operands) {
      if (!dependent_[v.index()]) continue;
      const Group& from = group_[v.index()];
      group.depth = std::max(group.depth, from.depth + (from.actor != actor || (is_term_[v.index()] && !adds_terms(op))));
      group.update = group.update == -2 || group.update == from.update ? from.update : -1;
      group.ahead = group.ahead || from.ahead;
    }
    // A state that other stages read must not change before they have.
    if (group.depth > 0 || group.update < 0 || (state >= 0 && read_by_others(state, group.update))) group.update = -1;
    group.ahead = group.update >= 0 && (group.ahead || op.name == "adamw_ahead");
    return group;
  }

  void hold_states(ValueId v, Actor actor) {
    if (dependent_[v.index()]) return;
    std::set<std::int32_t> states;
    collect_states(v, states);
    for (std::int32_t s : states) {
      holders_[static_cast<std::size_t>(s)].insert(actor);
      if (home_[static_cast<std::size_t>(s)] < 0) home_[static_cast<std::size_t>(s)] = actor;
    }
  }

  std::int32_t written_state(std::size_t op) {
    if (written_state_.empty()) {
      written_state_.assign(graph_.ops.size(), -1);
      for (std::int32_t s = graph_.state; s-- > 0;)
        for (ValueId v = graph_.outputs[static_cast<std::size_t>(s)]; v; v = revised(v))
          if (const OpId from = producer_[v.index()]) written_state_[from.index()] = s;
    }
    return written_state_[op];
  }

  // The earlier version of which the value is a later one; none: it is no such.
  ValueId revised(ValueId v) const {
    const OpId from = producer_[v.index()];
    if (!from) return {};
    const Op& op = graph_.ops[from.index()];
    const OpDefinition* definition = find_op(op.name);
    if (!definition || !definition->revises) return {};
    return op.operands[static_cast<std::size_t>(std::find(op.results.begin(), op.results.end(), v) - op.results.begin())];
  }

  void settle_state() {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (home_[s] < 0) home_[s] = dependent_[next.index()] ? group_[next.index()].actor : 0;
      holders_[s].insert(home_[s]);
      // A next value that depends on no loop result is computed by every holder.
      if (!dependent_[next.index()])
        for (Actor actor : std::set<Actor>(holders_[s])) hold_states(next, actor);
    }
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const std::int32_t instance = l_.input(static_cast<std::int32_t>(s), -1);
      l_.draft.instances[static_cast<std::size_t>(instance)].home = home_[s];
    }
  }

  // Versions of states that are written over them before the last one is: where that alone is made of them, later and on the state's home.
  void find_early() {
    const std::vector<int> uses = use_counts(graph_);
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s], early = revised(next);
      if (!early || !dependent_[early.index()] || uses[early.index()] != 1 || group_[early.index()] == group_[next.index()]) continue;
      if (written_in_place(s, early) && written_in_place(s, next)) early_[early.value] = s;
    }
  }

  Group last_group(Actor actor) const {
    Group last{actor, 0, -1};
    for (const auto& [key, ops] : after_)
      if (key.actor == actor && key.update < 0) last = std::max(last, key);
    return last;
  }

  // Values that tasks after the loop must give away: to other tasks, as next state, as outputs.
  void plan_outputs() {
    for (const auto& [key, ops] : after_)
      for (std::size_t i : ops)
        for (ValueId v : graph_.ops[i].operands)
          if (dependent_[v.index()] && !partial_.count(v.value) && !early_.count(v.value) && group_[v.index()] != key) after_instance(v);
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const ValueId v = graph_.outputs[o];
      if (in_shares(v)) continue;
      if (dependent_[v.index()]) {
        after_instance(v);
      } else {
        clones_[last_group(0)].insert(v.value);
      }
    }
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s] || is_gathered(s)) continue;
      if (dependent_[next.index()]) {
        after_instance(next);
      } else {
        for (Actor actor : holders_[s]) clones_[last_group(actor)].insert(next.value);
      }
    }
  }

  // The instance of a value computed after the loop, single part; a partial sum that is itself asked for is copied out by a task.
  std::int32_t after_instance(ValueId v) {
    const Group& group = group_[v.index()];
    const auto [it, added] = exported_.try_emplace({v.value, group.actor}, -1);
    if (added) {
      Instance exported{Instance::Source::computed, concat("after:", v.value), {type(v)}, group.actor, -1, -1};
      if (in_shares(v)) {
        exported.block = member_[v.index()].block;
        exported.members = {member_[v.index()].index};
        exported.sharded = true;
      }
      it->second = l_.add(std::move(exported));
      after_.try_emplace(group);
    }
    return it->second;
  }

  // Is the state whole on every device, but its next value made in shares?
  bool is_gathered(std::size_t s) const {
    return in_shares(graph_.outputs[s]) && !l_.sharded_states.contains(static_cast<std::int32_t>(s));
  }

  // Members of one block that arise in one task and must be whole.
  struct Gather {
    Group group;
    std::int32_t block;
    std::vector<ValueId> values;                            // of each member; none: not asked for
    std::vector<std::pair<std::int32_t, Write>> targets{};  // of members
    std::int32_t share = -1, whole = -1;                    // instances
  };

  void plan_gathers() {
    for (std::size_t s = 0; s < home_.size(); ++s)
      if (is_gathered(s)) gather(graph_.outputs[s], {l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update});
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const ValueId v = graph_.outputs[o];
      if (!in_shares(v) || whole_.contains(v.value)) continue;
      whole_[v.value] = l_.add({Instance::Source::computed, concat("whole:", v.value), {type(v)}, group_[v.index()].actor, -1, -1});
      gather(v, {whole_[v.value]});
    }
  }

  void gather(ValueId v, Write target) {
    const Member member = member_[v.index()];
    const Group& group = group_[v.index()];
    const auto m = static_cast<std::size_t>(member.index);
    auto found = std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& gather) {
      return gather.group == group && gather.block == member.block && (!gather.values[m] || gather.values[m] == v);
    });
    if (found == gathers_.end()) {
      Gather made{group, member.block, std::vector<ValueId>(l_.blocks[static_cast<std::size_t>(member.block)].members.size())};
      const std::string name = concat("next:", member.block, ".", gathers_.size());
      made.share = l_.add_block(member.block, group.actor, concat(name, ".share"), /*sharded=*/true);
      made.whole = l_.add_block(member.block, group.actor, name, /*sharded=*/false);
      found = gathers_.insert(gathers_.end(), std::move(made));
      after_.try_emplace(group);
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
      run.reads = {gather.whole};
      run.task = l_.tasks.add(concat("unpack.", gather.block), std::move(graph));
      l_.draft.actors[static_cast<std::size_t>(gather.group.actor)].push_back(std::move(run));
    }
  }

  // One graph of the outside, built on demand from the values it is asked for.
  struct Fragment {
    Group group;
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
    if (const auto partial = partial_.find(v.value); partial != partial_.end()) {
      import(f, partial->second.instance, partial->second.part, v);
    } else if (input_index_[v.index()] >= 0) {
      import(f, l_.input(input_index_[v.index()], -1), 0, v);
    } else if (const auto early = early_.find(v.value); early != early_.end() && group_[v.index()] != f.group) {
      import(f, l_.input(static_cast<std::int32_t>(early->second), -1), 0, v);
    } else if (dependent_[v.index()] && group_[v.index()] != f.group) {
      import(f, after_instance(v), 0, v);
    } else if (const auto before = before_.find({v.value, f.group.actor}); f.after && before != before_.end()) {
      import(f, before->second, 0, v);
    } else {
      copy(f, graph_.ops[producer_[v.index()].index()]);
    }
    return f.local.at(v.value);
  }

  void copy(Fragment& f, const Op& op) {
    Op out = op;
    for (ValueId& operand : out.operands) operand = need(f, operand);
    for (ValueId& result : out.results) {
      const ValueId old = result;
      result = f.graph.add_value(type(old));
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
    for (const auto& [key, values] : clones_) after_.try_emplace(key);
    for (const auto& [key, ops] : after_) {  // by actor, then depth
      Fragment f{key};
      for (std::size_t i : ops)
        if (!f.local.count(graph_.ops[i].results[0].value)) copy(f, graph_.ops[i]);
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
  void put_collectives(const Group& key) {
    const auto collective = [&](Opcode opcode, std::int32_t from, Write to) {
      Run run;
      run.opcode = opcode;
      run.reads = {from};
      run.writes = {to};
      put(key, std::move(run));
    };
    for (const auto& [where, number] : exported_)
      if (const ValueId v(where.first); is_term_[v.index()] && group_[v.index()] == key)
        collective(Opcode::all_reduce, number, {number, ResultMode::update});
    for (const Gather& gather : gathers_)
      if (gather.group == key) collective(Opcode::all_gather, gather.share, {gather.whole});
  }

  // At the end of the actor's runs, or in the place of its stage's U: what updates ahead behind the rest.
  void put(const Group& group, Run run) {
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
  void give_state(const Group& key, const Give& give) {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s] || is_gathered(s)) continue;
      if (!dependent_[next.index()]) {
        if (holders_[s].count(key.actor) && key == last_group(key.actor))
          give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      } else if (group_[next.index()] == key && updated_in_place(s)) {
        give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      }
    }
  }

  bool updated_in_place(std::size_t s) { return written_in_place(s, graph_.outputs[s]); }

  // Does the value arise where the state lives, in the last group that reads the present one?
  bool written_in_place(std::size_t s, ValueId v) {
    const Group& group = group_[v.index()];
    if (group.actor != home_[s]) return false;
    if (readers_.empty()) find_readers();
    return std::all_of(readers_[s].begin(), readers_[s].end(),
                       [&](const Group& reader) { return reader == group || (group.update < 0 && !is_behind(reader, group)); });
  }

  // Of one actor, both behind its loop or not.
  static bool is_behind(const Group& a, const Group& b) { return std::pair(a.depth, a.alone) > std::pair(b.depth, b.alone); }

  // The groups on a state's home that read it.
  void find_readers() {
    readers_.resize(home_.size());
    for (const auto& [key, ops] : after_)
      for (std::size_t i : ops)
        for (ValueId v : graph_.ops[i].operands) {
          std::set<std::int32_t> states;
          if (!dependent_[v.index()]) collect_states(v, states);
          for (std::int32_t state : states)
            if (home_[static_cast<std::size_t>(state)] == key.actor) readers_[static_cast<std::size_t>(state)].insert(key);
        }
  }

  template <class Give>
  void give_early(const Group& key, const Give& give) {
    for (const auto& [value, s] : early_)
      if (group_[ValueId(value).index()] == key) give(ValueId(value), l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
  }

  template <class Give>
  void give_values(const Group& key, const Give& give) {
    for (const auto& [where, number] : exported_) {
      const ValueId v(where.first);
      if (group_[v.index()] == key && wanted(v)) give(v, number, ResultMode::store);
    }
    const auto clones = clones_.find(key);
    if (clones == clones_.end() || key.actor != 0) return;
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const ValueId v = graph_.outputs[o];
      if (dependent_[v.index()] || exported_.count({v.value, 0})) continue;
      const std::int32_t number = l_.add({Instance::Source::computed, concat("after:", v.value), {type(v)}, 0, -1, -1});
      exported_[{v.value, 0}] = number;
      give(v, number, ResultMode::store);
    }
  }

  // Is the value read from its instance: by another task, as an output, or to be copied over a state?
  bool wanted(ValueId v) {
    if (read_elsewhere_.empty()) {
      read_elsewhere_.assign(graph_.values.size(), false);
      for (const auto& [key, ops] : after_)
        for (std::size_t i : ops)
          for (ValueId operand : graph_.ops[i].operands)
            if (group_[operand.index()] != key && !early_.count(operand.value)) read_elsewhere_[operand.index()] = true;
      for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o)
        if (!in_shares(graph_.outputs[o])) read_elsewhere_[graph_.outputs[o].index()] = true;
      for (std::size_t s = 0; s < home_.size(); ++s)
        if (!is_gathered(s) && !updated_in_place(s)) read_elsewhere_[graph_.outputs[s].index()] = true;
    }
    return read_elsewhere_[v.index()];
  }

  // Next states that could not be written where they arose, and copies of what only the owner updated.
  void finish_state() {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s] || !dependent_[next.index()] || is_gathered(s)) continue;
      const std::int32_t state = l_.input(static_cast<std::int32_t>(s), -1);
      if (!updated_in_place(s)) {
        Run copy;
        copy.opcode = Opcode::copy;
        copy.reads = {after_instance(next)};
        copy.writes = {{state, ResultMode::update}};
        l_.draft.actors[static_cast<std::size_t>(home_[s])].push_back(std::move(copy));
      }
      if (holders_[s].size() > 1) l_.draft.refreshed.push_back(state);
    }
  }

  void emit_outputs() {
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const ValueId v = graph_.outputs[o];
      Run output;
      output.opcode = Opcode::output;
      output.port = static_cast<std::int32_t>(o) - graph_.state;
      output.reads = {in_shares(v) ? whole_.at(v.value) : exported_.at({v.value, dependent_[v.index()] ? group_[v.index()].actor : 0})};
      l_.draft.actors[0].push_back(std::move(output));
    }
  }

  void declare_ports() {
    const auto split = static_cast<std::size_t>(attribute<std::int64_t>(l_.loop_op(), "split"));
    for (std::size_t i = static_cast<std::size_t>(graph_.state); i < graph_.inputs.size(); ++i) {
      const Value& value = graph_.values[graph_.inputs[i].index()];
      const auto& operands = l_.loop_op().operands;
      const bool is_split = std::find(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(split), graph_.inputs[i]) !=
                            operands.begin() + static_cast<std::ptrdiff_t>(split);
      l_.program.data.push_back({value.name, value.type, is_split});
    }
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const std::size_t index = o - static_cast<std::size_t>(graph_.state);
      l_.program.outputs.push_back(
          {index < graph_.output_names.size() ? graph_.output_names[index] : concat("output", index), type(graph_.outputs[o]), false});
    }
  }

  Lowering& l_;
  Graph graph_;  // the step without its loop
  std::vector<OpId> producer_;
  std::unordered_map<std::int32_t, Place> partial_;  // values that the loop leaves behind
  std::vector<bool> dependent_;                      // of each value: on the loop's results
  std::vector<Group> group_;                         // of dependent values
  std::vector<std::int32_t> input_index_;
  std::vector<Member> member_;  // of each value that devices hold in shares
  std::vector<Group> origin_;   // of these and their terms: where the gradient lies
  std::vector<bool> is_term_;   // of each value: the devices have terms of it
  std::vector<Gather> gathers_;
  std::map<std::int32_t, std::int32_t> whole_;  // value held in shares that the step puts out: its instance
  std::vector<Actor> home_;                     // of each state
  std::vector<std::set<Actor>> holders_;
  std::vector<std::set<std::int32_t>> reading_stages_;  // of each state: those whose tasks read it
  std::vector<std::int32_t> written_state_;
  std::map<std::int32_t, std::size_t> early_;  // value written over a state before its last version: the state
  std::vector<std::set<Group>> readers_;       // of each state
  std::vector<bool> read_elsewhere_;
  std::map<Group, std::vector<std::size_t>> after_;                  // dependent ops
  std::map<Group, std::set<std::int32_t>> clones_;                   // independent values asked for there
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> exported_;  // (value, actor): instance
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> before_;    // (value, actor): instance, computed before the loop
};

}  // namespace

void place_outside(Lowering& lowering) {
  Outside(lowering).run();
}

}  // namespace penstock
