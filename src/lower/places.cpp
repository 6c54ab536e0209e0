// Pass: where the code after the loop runs, and where state lives.
//
// What depends on the loop's results runs where it moves the fewest bytes; the ops of one actor that can run without hearing from another
// actor in between are one task:
//   depth(op) = max over its operands of (0 for the loop's, depth(operand) + (1 if it lies on another actor))
// What another actor waits for is a task before the rest of its depth: the factor that clips is on its way before the first update begins.
// Where the table has a U of a stage, what needs that stage's accumulators alone is a task of its own and runs there, before the loop of
// the actor has ended; what needs to know of other stages (clipping by the global norm) stays after the loop.
// A state that is updated ahead of that (adamw_ahead) is written over there too, and once more, after the loop, by the op that validates it
// (OpDefinition::revises). What a stage adds to the norm is a task before the one that updates ahead, so that it is sent meanwhile.
// State is owned by one actor; actors that only read it have copies.
// A sum over all elements of what an actor's devices hold in shares (blocks.cpp) is one term on each device. What reads it is a later task,
// as if it came from elsewhere: the terms are summed in between.
#include "lower/places.h"

#include <algorithm>

#include "base/invariant.h"
#include "lower/ahead.h"
#include "ops/definition.h"

namespace penstock {
namespace {

using Actor = std::int32_t;

// Of one actor: is `a` after `b`, both behind its loop?
bool is_behind(const TaskGroup& a, const TaskGroup& b) {
  return std::pair(a.depth, a.alone) > std::pair(b.depth, b.alone);
}

class Finder {
 public:
  explicit Finder(const Lowering& lowering) : l_(lowering), p_{.graph = lowering.step} {}

  Places run() {
    split_graph();
    p_.producer = producers(p_.graph);
    find_dependent();
    find_state_readers();
    update_once();
    find_members();
    if (!l_.blocks.empty()) join_terms();
    find_written_states();
    for (std::size_t i = 0; i < p_.graph.ops.size(); ++i)
      if (dependent_op(i)) place(i);
    set_apart();
    settle_state();
    find_readers();
    for (std::size_t s = 0; s < p_.home.size(); ++s) p_.in_place.push_back(written_in_place(s, p_.graph.outputs[s]));
    find_early();
    return std::move(p_);
  }

 private:
  bool dependent_op(std::size_t i) const { return !p_.graph.ops[i].results.empty() && p_.dependent[p_.graph.ops[i].results[0].index()]; }
  const Instance& instance(std::int32_t i) const { return l_.draft.instances[static_cast<std::size_t>(i)]; }

  // The step without its loop: results with one partial sum are that; others are add_n of the partial sums of their actors.
  void split_graph() {
    const Op loop = p_.graph.ops[l_.loop];
    std::map<std::int32_t, std::vector<LoopEnds::Partial>> partials;
    for (const LoopEnds::Partial& partial : l_.ends.partials) partials[partial.result].push_back(partial);
    std::vector<Op> sums;
    for (std::size_t r = 0; r < loop.results.size(); ++r) {
      std::vector<LoopEnds::Partial>& parts = partials[static_cast<std::int32_t>(r)];
      invariant(!parts.empty(), "a loop result has no accumulator");
      if (parts.size() == 1) {
        p_.partial[loop.results[r].value] = parts[0];
        continue;
      }
      std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.actor < b.actor; });
      Op sum;
      sum.name = "add_n";
      sum.results = {loop.results[r]};
      for (const LoopEnds::Partial& part : parts) {
        const TensorType partial_type = p_.type(loop.results[r]);
        sum.operands.push_back(p_.graph.add_value(partial_type));
        p_.partial[sum.operands.back().value] = part;
      }
      sums.push_back(std::move(sum));
    }
    p_.graph.ops.erase(p_.graph.ops.begin() + static_cast<std::ptrdiff_t>(l_.loop));
    p_.graph.ops.insert(p_.graph.ops.begin() + static_cast<std::ptrdiff_t>(l_.loop), sums.begin(), sums.end());
  }

  void find_dependent() {
    p_.dependent.assign(p_.graph.values.size(), false);
    for (const auto& [value, place] : p_.partial) p_.dependent[static_cast<std::size_t>(value)] = true;
    for (const Op& op : p_.graph.ops) {
      const bool any = std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return p_.dependent[v.index()]; });
      for (ValueId result : op.results) p_.dependent[result.index()] = any;
    }
    p_.group.assign(p_.graph.values.size(), {});
    const std::set<std::pair<Actor, std::int32_t>> updates = find_updates();
    for (const auto& [value, place] : p_.partial)
      p_.group[static_cast<std::size_t>(value)] = {place.actor, 0, updates.contains({place.actor, place.stage}) ? place.stage : -1};
    p_.input_index.assign(p_.graph.values.size(), -1);
    for (std::size_t i = 0; i < p_.graph.inputs.size(); ++i) p_.input_index[p_.graph.inputs[i].index()] = static_cast<std::int32_t>(i);
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
    p_.home.assign(static_cast<std::size_t>(p_.graph.state), -1);
    p_.holders.resize(p_.home.size());
    reading_stages_.resize(p_.home.size());
    std::vector<std::int32_t> state_of(l_.draft.instances.size(), -1), first_stage(p_.home.size());
    for (const auto& [key, instance] : l_.inputs)
      if (key.first < p_.graph.state) state_of[static_cast<std::size_t>(instance)] = key.first;
    for (Actor actor = 0; actor < l_.actors(); ++actor)
      for (const Run& run : l_.draft.actors[static_cast<std::size_t>(actor)])
        for (std::int32_t read : run.reads) {
          const std::int32_t state = state_of[static_cast<std::size_t>(read)];
          if (state < 0) continue;
          const auto s = static_cast<std::size_t>(state);
          p_.holders[s].insert(actor);
          reading_stages_[s].insert(run.stage);
          if (p_.home[s] < 0 || run.stage < first_stage[s]) {
            p_.home[s] = actor;
            first_stage[s] = run.stage;
          }
        }
    // What is computed before the loop from state needs it there too.
    for (const LoopEnds::Use& use : l_.ends.uses) hold_states(l_.loop_op().operands[static_cast<std::size_t>(use.operand)], use.actor);
  }

  // Where there is no U to update ahead in, or other stages read the state, nothing is gained by that: back to one update at the end.
  void update_once() {
    const auto early = [&](const Op& ahead) {
      const auto gradient = p_.partial.find(ahead.operands[1].value);
      const std::int32_t state = p_.input_index[ahead.operands[0].index()];
      if (gradient == p_.partial.end() || state < 0 || state >= p_.graph.state) return false;
      const Extent made = instance(gradient->second.instance).extent;
      if (made != Extent::whole && l_.extent_of(state) != made) return false;  // written at the step's end
      return p_.group[ahead.operands[1].index()].update >= 0 && !read_by_others(state, gradient->second.stage);
    };
    update_ahead_only_where(p_.graph, early);
    p_.producer = producers(p_.graph);
    find_dependent();
  }

  bool has_shares(const Op& op) const {
    return std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return p_.in_shares(v); });
  }

  // Values that devices hold in shares, and the terms that each has of sums over them.
  void find_members() {
    p_.member.assign(p_.graph.values.size(), {});
    p_.is_term.assign(p_.graph.values.size(), false);
    origin_ = p_.group;
    for (const auto& [value, place] : p_.partial) {
      const Instance& from = instance(place.instance);
      if (from.extent != Extent::whole)
        p_.member[static_cast<std::size_t>(value)] = {from.block, from.members[static_cast<std::size_t>(place.part)]};
    }
    for (const auto& [state, member] : l_.sharded_states) p_.member[p_.graph.inputs[static_cast<std::size_t>(state)].index()] = member;
    for (const Op& op : p_.graph.ops) {
      const auto from =
          std::find_if(op.operands.begin(), op.operands.end(), [&](ValueId v) { return p_.in_shares(v) && p_.dependent[v.index()]; });
      if (from == op.operands.end()) continue;
      const bool sums = share_rule(p_.graph, op) == ShareRule::sum;
      for (ValueId result : op.results) {
        p_.is_term[result.index()] = sums;
        origin_[result.index()] = origin_[from->index()];
        if (!sums) p_.member[result.index()] = p_.member[from->index()];
      }
    }
  }

  // Of terms that are added up with others, those that arise in one task are added up there: then there is one to be summed over the
  // devices.
  void join_terms() {
    std::vector<Op> ops;
    for (Op& op : p_.graph.ops) {
      if (op.name == "add_n") join_terms(op, ops);
      ops.push_back(std::move(op));
    }
    p_.graph.ops = std::move(ops);
    p_.producer = producers(p_.graph);
    find_dependent();
    find_members();
  }

  void join_terms(Op& sum, std::vector<Op>& ops) {
    std::map<TaskGroup, std::vector<ValueId>> terms;
    std::vector<ValueId> operands;
    for (ValueId v : sum.operands) {
      if (p_.is_term[v.index()])
        terms[origin_[v.index()]].push_back(v);
      else
        operands.push_back(v);
    }
    if (operands.size() + terms.size() < 2) return;  // the sum arises in that task
    for (const auto& [group, list] : terms) {
      Op joined = sum;
      joined.operands = list;
      joined.results = {p_.graph.add_value(p_.type(sum.results[0]))};
      operands.push_back(joined.results[0]);
      ops.push_back(std::move(joined));
    }
    sum.operands = std::move(operands);
  }

  bool read_by_others(std::int32_t state, std::int32_t stage) const {
    const std::set<std::int32_t>& stages = reading_stages_[static_cast<std::size_t>(state)];
    return std::any_of(stages.begin(), stages.end(), [&](std::int32_t reader) { return reader != stage; });
  }

  void collect_states(ValueId value, std::set<std::int32_t>& out) const {
    const std::int32_t input = p_.input_index[value.index()];
    if (input >= 0 && input < p_.graph.state) out.insert(input);
    if (const OpId op = p_.producer[value.index()])
      for (ValueId operand : p_.graph.ops[op.index()].operands) collect_states(operand, out);
  }

  std::int64_t bytes_moved(const Op& op, Actor actor, std::int32_t state) const {
    std::int64_t bytes = 0;
    for (ValueId v : op.operands) {
      const std::int32_t input = p_.input_index[v.index()];
      if (p_.dependent[v.index()]) {
        if (p_.group[v.index()].actor != actor) bytes += p_.type(v).bytes();
      } else if (input >= 0 && input < p_.graph.state) {
        const auto s = static_cast<std::size_t>(input);
        if (p_.home[s] >= 0 && !p_.holders[s].count(actor)) bytes += p_.type(v).bytes();
      }
    }
    if (state >= 0 && p_.home[static_cast<std::size_t>(state)] >= 0 && p_.home[static_cast<std::size_t>(state)] != actor)
      bytes += p_.type(op.results[0]).bytes();
    return bytes;
  }

  void place(std::size_t i) {
    const Op& op = p_.graph.ops[i];
    const std::int32_t state = written_state_[i];
    Actor best = -1;
    std::int64_t best_bytes = 0;
    std::set<Actor> candidates;
    for (ValueId v : op.operands)
      if (p_.dependent[v.index()] && (p_.in_shares(v) || !has_shares(op))) candidates.insert(p_.group[v.index()].actor);
    if (!has_shares(op) && state >= 0 && p_.home[static_cast<std::size_t>(state)] >= 0)
      candidates.insert(p_.home[static_cast<std::size_t>(state)]);
    for (Actor actor : candidates) {
      const std::int64_t bytes = bytes_moved(op, actor, state);
      if (best < 0 || bytes < best_bytes) {
        best = actor;
        best_bytes = bytes;
      }
    }
    const TaskGroup group = group_of(op, best, state);
    for (ValueId result : op.results) {
      p_.group[result.index()] = group;
      p_.is_term[result.index()] = p_.is_term[result.index()] || adds_terms(op);
    }
    // State that only this op needs (Adam's moments) lives where the op runs.
    for (ValueId v : op.operands) hold_states(v, best);
    p_.ops[group].push_back(i);
  }

  // Splits each depth of an actor into what other actors wait for, and what it needs itself, and the rest.
  void set_apart() {
    std::vector<bool> awaited = p_.is_term;
    for (std::size_t i = p_.graph.ops.size(); i-- > 0;) {
      const Op& op = p_.graph.ops[i];
      if (!dependent_op(i)) continue;
      const TaskGroup& group = p_.group[op.results[0].index()];
      const bool needed = std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return awaited[v.index()]; });
      for (ValueId v : op.operands) {
        if (!p_.dependent[v.index()]) continue;
        const TaskGroup& from = p_.group[v.index()];
        if (from.actor != group.actor || (needed && from == group)) awaited[v.index()] = true;
      }
    }
    const auto needed = [&](std::size_t i) {
      const std::vector<ValueId>& results = p_.graph.ops[i].results;
      return std::any_of(results.begin(), results.end(), [&](ValueId v) { return awaited[v.index()]; });
    };
    std::map<TaskGroup, std::vector<std::size_t>> after;
    for (const auto& [key, ops] : p_.ops) {
      const bool splits = key.update < 0 && std::any_of(ops.begin(), ops.end(), needed);
      for (std::size_t i : ops) {
        TaskGroup group = key;
        group.alone = splits && !needed(i);
        for (ValueId result : p_.graph.ops[i].results) p_.group[result.index()] = group;
        after[group].push_back(i);
      }
    }
    p_.ops = std::move(after);
  }

  // Does it only add up terms that arise in one task?
  bool adds_terms(const Op& op) const {
    const auto alike = [&](ValueId v) { return p_.is_term[v.index()] && p_.group[v.index()] == p_.group[op.operands[0].index()]; };
    return op.name == "add_n" && std::all_of(op.operands.begin(), op.operands.end(), alike);
  }

  TaskGroup group_of(const Op& op, Actor actor, std::int32_t state) const {
    TaskGroup group{actor, 0, -2};
    for (ValueId v : op.operands) {
      if (!p_.dependent[v.index()]) continue;
      const TaskGroup& from = p_.group[v.index()];
      group.depth = std::max(group.depth, from.depth + (from.actor != actor || (p_.is_term[v.index()] && !adds_terms(op))));
      group.update = group.update == -2 || group.update == from.update ? from.update : -1;
      group.ahead = group.ahead || from.ahead;
    }
    // A state that other stages read must not change before they have.
    if (group.depth > 0 || group.update < 0 || (state >= 0 && read_by_others(state, group.update))) group.update = -1;
    group.ahead = group.update >= 0 && (group.ahead || op.name == "adamw_ahead");
    return group;
  }

  void hold_states(ValueId v, Actor actor) {
    if (p_.dependent[v.index()]) return;
    std::set<std::int32_t> states;
    collect_states(v, states);
    for (std::int32_t s : states) {
      p_.holders[static_cast<std::size_t>(s)].insert(actor);
      if (p_.home[static_cast<std::size_t>(s)] < 0) p_.home[static_cast<std::size_t>(s)] = actor;
    }
  }

  void find_written_states() {
    written_state_.assign(p_.graph.ops.size(), -1);
    for (std::int32_t s = p_.graph.state; s-- > 0;)
      for (ValueId v = p_.graph.outputs[static_cast<std::size_t>(s)]; v; v = revised(v))
        if (const OpId from = p_.producer[v.index()]) written_state_[from.index()] = s;
  }

  // The earlier version of which the value is a later one; none: it is no such.
  ValueId revised(ValueId v) const {
    const OpId from = p_.producer[v.index()];
    if (!from) return {};
    const Op& op = p_.graph.ops[from.index()];
    const OpDefinition* definition = find_op(op.name);
    if (!definition || !definition->revises) return {};
    return op.operands[static_cast<std::size_t>(std::find(op.results.begin(), op.results.end(), v) - op.results.begin())];
  }

  void settle_state() {
    // An output that depends on no loop result (the learning rate) is computed by actor 0.
    for (std::size_t o = static_cast<std::size_t>(p_.graph.state); o < p_.graph.outputs.size(); ++o) hold_states(p_.graph.outputs[o], 0);
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const ValueId next = p_.graph.outputs[s];
      if (p_.home[s] < 0) p_.home[s] = p_.dependent[next.index()] ? p_.group[next.index()].actor : 0;
      p_.holders[s].insert(p_.home[s]);
      // A next value that depends on no loop result is computed by every holder.
      if (!p_.dependent[next.index()])
        for (Actor actor : std::set<Actor>(p_.holders[s])) hold_states(next, actor);
    }
  }

  // Versions of states that are written over them before the last one is: where that alone is made of them, later and on the state's home.
  void find_early() {
    const std::vector<int> uses = use_counts(p_.graph);
    for (std::size_t s = 0; s < p_.home.size(); ++s) {
      const ValueId next = p_.graph.outputs[s], early = revised(next);
      if (!early || !p_.dependent[early.index()] || uses[early.index()] != 1 || p_.group[early.index()] == p_.group[next.index()]) continue;
      if (written_in_place(s, early) && p_.in_place[s]) p_.early[early.value] = s;
    }
  }

  // Does the value arise where the state lives, in the last group that reads the present one?
  bool written_in_place(std::size_t s, ValueId v) const {
    const TaskGroup& group = p_.group[v.index()];
    if (group.actor != p_.home[s]) return false;
    return std::all_of(readers_[s].begin(), readers_[s].end(),
                       [&](const TaskGroup& reader) { return reader == group || (group.update < 0 && !is_behind(reader, group)); });
  }

  // The groups on each state's home that read it.
  void find_readers() {
    readers_.resize(p_.home.size());
    for (const auto& [key, ops] : p_.ops)
      for (std::size_t i : ops)
        for (ValueId v : p_.graph.ops[i].operands) {
          std::set<std::int32_t> states;
          if (!p_.dependent[v.index()]) collect_states(v, states);
          for (std::int32_t state : states)
            if (p_.home[static_cast<std::size_t>(state)] == key.actor) readers_[static_cast<std::size_t>(state)].insert(key);
        }
  }

  const Lowering& l_;
  Places p_;
  std::vector<TaskGroup> origin_;                       // of values in shares and their terms: where the gradient lies
  std::vector<std::set<std::int32_t>> reading_stages_;  // of each state: those whose tasks read it
  std::vector<std::int32_t> written_state_;             // of each op
  std::vector<std::set<TaskGroup>> readers_;            // of each state
};

}  // namespace

Places find_places(const Lowering& lowering) {
  return Finder(lowering).run();
}

}  // namespace penstock
