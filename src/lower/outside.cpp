// Pass: the code before and after the loop, and where state lives.
//
// What does not depend on the loop's results is cloned on every actor that needs it (before the loop where the loop reads it, else
// into the tasks after it). What does depend on them runs where it moves the fewest bytes; the ops of one actor that can run without
// hearing from another actor in between are one task:
//   depth(op) = max over its operands of (0 for the loop's, depth(operand) + (1 if it lies on another actor))
// State is owned by one actor, its next value is written over it there; actors that only read it have copies, refreshed at the end.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/draft.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Actor = std::int32_t;

struct Place {
  Actor actor = -1;
  std::int32_t instance = -1, part = 0;
};

class Outside {
 public:
  explicit Outside(Lowering& lowering) : l_(lowering), graph_(lowering.step) {}

  void run() {
    split_graph();
    producer_ = producers(graph_);
    find_dependent();
    find_state_readers();
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      if (dependent_op(i)) place(i);
    settle_state();
    plan_outputs();
    build_before();
    build_after();
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
        partial_[loop.results[r].value] = {parts[0].actor, parts[0].instance, parts[0].part};
        continue;
      }
      std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.actor < b.actor; });
      Op sum;
      sum.name = "add_n";
      sum.results = {loop.results[r]};
      for (const LoopEnds::Partial& part : parts) {
        const TensorType partial_type = type(loop.results[r]);
        sum.operands.push_back(graph_.add_value(partial_type));
        partial_[sum.operands.back().value] = {part.actor, part.instance, part.part};
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
    actor_.assign(graph_.values.size(), -1);
    depth_.assign(graph_.values.size(), 0);
    for (const auto& [value, place] : partial_) actor_[static_cast<std::size_t>(value)] = place.actor;
    input_index_.assign(graph_.values.size(), -1);
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) input_index_[graph_.inputs[i].index()] = static_cast<std::int32_t>(i);
  }

  // A state's owner is the actor that runs the first stage reading it.
  void find_state_readers() {
    home_.assign(static_cast<std::size_t>(graph_.state), -1);
    holders_.resize(home_.size());
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
          if (home_[s] < 0 || run.stage < first_stage[s]) {
            home_[s] = actor;
            first_stage[s] = run.stage;
          }
        }
    // What is computed before the loop from state needs it there too.
    for (const LoopEnds::Use& use : l_.ends.uses) hold_states(l_.loop_op().operands[static_cast<std::size_t>(use.operand)], use.actor);
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
        if (actor_[v.index()] != actor) bytes += type(v).bytes();
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
      if (dependent_[v.index()]) candidates.insert(actor_[v.index()]);
    if (state >= 0 && home_[static_cast<std::size_t>(state)] >= 0) candidates.insert(home_[static_cast<std::size_t>(state)]);
    for (Actor actor : candidates) {
      const std::int64_t bytes = bytes_moved(op, actor, state);
      if (best < 0 || bytes < best_bytes) {
        best = actor;
        best_bytes = bytes;
      }
    }
    std::int32_t depth = 0;
    for (ValueId v : op.operands)
      if (dependent_[v.index()]) depth = std::max(depth, depth_[v.index()] + (actor_[v.index()] != best));
    for (ValueId result : op.results) {
      actor_[result.index()] = best;
      depth_[result.index()] = depth;
    }
    // State that only this op needs (Adam's moments) lives where the op runs.
    for (ValueId v : op.operands) hold_states(v, best);
    after_[{best, depth}].push_back(i);
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
        if (const OpId from = producer_[graph_.outputs[static_cast<std::size_t>(s)].index()]) written_state_[from.index()] = s;
    }
    return written_state_[op];
  }

  void settle_state() {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (home_[s] < 0) home_[s] = dependent_[next.index()] ? actor_[next.index()] : 0;
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

  std::int32_t last_depth(Actor actor) const {
    std::int32_t depth = 0;
    for (const auto& [key, ops] : after_)
      if (key.first == actor) depth = std::max(depth, key.second);
    return depth;
  }

  // Values that tasks after the loop must give away: to other tasks, as next state, as outputs.
  void plan_outputs() {
    for (const auto& [key, ops] : after_)
      for (std::size_t i : ops)
        for (ValueId v : graph_.ops[i].operands)
          if (dependent_[v.index()] && !partial_.count(v.value) && (actor_[v.index()] != key.first || depth_[v.index()] != key.second))
            after_instance(v);
    for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o) {
      const ValueId v = graph_.outputs[o];
      if (dependent_[v.index()]) {
        after_instance(v);
      } else {
        clones_[{0, last_depth(0)}].insert(v.value);
      }
    }
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s]) continue;
      if (dependent_[next.index()]) {
        after_instance(next);
      } else {
        for (Actor actor : holders_[s]) clones_[{actor, last_depth(actor)}].insert(next.value);
      }
    }
  }

  // The instance of a value computed after the loop, single part; a partial sum that is itself asked for is copied out by a task.
  std::int32_t after_instance(ValueId v) {
    const auto [it, added] = exported_.try_emplace({v.value, actor_[v.index()]}, -1);
    if (added) {
      it->second = l_.add({Instance::Source::computed, concat("after:", v.value), {type(v)}, actor_[v.index()], -1, -1});
      after_.try_emplace({actor_[v.index()], depth_[v.index()]});
    }
    return it->second;
  }

  // One graph of the outside, built on demand from the values it is asked for.
  struct Fragment {
    Actor actor;
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

  ValueId need(Fragment& f, ValueId v, std::int32_t depth) {
    if (const auto found = f.local.find(v.value); found != f.local.end()) return found->second;
    if (const auto partial = partial_.find(v.value); partial != partial_.end()) {
      import(f, partial->second.instance, partial->second.part, v);
    } else if (input_index_[v.index()] >= 0) {
      import(f, l_.input(input_index_[v.index()], -1), 0, v);
    } else if (dependent_[v.index()] && (actor_[v.index()] != f.actor || depth_[v.index()] != depth)) {
      import(f, after_instance(v), 0, v);
    } else if (const auto before = before_.find({v.value, f.actor}); depth >= 0 && before != before_.end()) {
      import(f, before->second, 0, v);
    } else {
      copy(f, graph_.ops[producer_[v.index()].index()], depth);
    }
    return f.local.at(v.value);
  }

  void copy(Fragment& f, const Op& op, std::int32_t depth) {
    Op out = op;
    for (ValueId& operand : out.operands) operand = need(f, operand, depth);
    for (ValueId& result : out.results) {
      const ValueId old = result;
      result = f.graph.add_value(type(old));
      f.local[old.value] = result;
    }
    f.graph.ops.push_back(std::move(out));
  }

  // Depth -1: before the loop.
  void build_before() {
    std::map<Actor, std::vector<LoopEnds::Use>> uses;
    for (const LoopEnds::Use& use : l_.ends.uses) uses[use.actor].push_back(use);
    for (const auto& [actor, list] : uses) {
      Fragment f{actor};
      Run run;
      for (const LoopEnds::Use& use : list) {
        const ValueId value = l_.loop_op().operands[static_cast<std::size_t>(use.operand)];
        ValueId output = need(f, value, -1);
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
      Fragment f{key.first};
      for (std::size_t i : ops)
        if (!f.local.count(graph_.ops[i].results[0].value)) copy(f, graph_.ops[i], key.second);
      Run run;
      const auto give = [&](ValueId v, std::int32_t target, ResultMode mode) {
        f.graph.outputs.push_back(need(f, v, key.second));
        run.writes.push_back({target, mode});
      };
      give_state(key, give);
      give_values(key, give);
      if (f.graph.outputs.empty()) continue;
      run.reads = f.reads;
      run.task = l_.tasks.add(concat("after.", key.first, ".", key.second), std::move(f.graph));
      l_.draft.actors[static_cast<std::size_t>(key.first)].push_back(std::move(run));
    }
  }

  // Next states that this task may write in place: it is the last on its actor that reads the present one.
  template <class Give>
  void give_state(std::pair<Actor, std::int32_t> key, const Give& give) {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s]) continue;
      if (!dependent_[next.index()]) {
        if (holders_[s].count(key.first) && key.second == last_depth(key.first))
          give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      } else if (actor_[next.index()] == key.first && depth_[next.index()] == key.second && updated_in_place(s)) {
        give(next, l_.input(static_cast<std::int32_t>(s), -1), ResultMode::update);
      }
    }
  }

  bool updated_in_place(std::size_t s) {
    const ValueId next = graph_.outputs[s];
    if (actor_[next.index()] != home_[s]) return false;
    if (state_depth_.empty()) {
      state_depth_.assign(home_.size(), -1);
      for (const auto& [key, ops] : after_)
        for (std::size_t i : ops)
          for (ValueId v : graph_.ops[i].operands) {
            std::set<std::int32_t> states;
            if (!dependent_[v.index()]) collect_states(v, states);
            for (std::int32_t state : states)
              if (home_[static_cast<std::size_t>(state)] == key.first)
                state_depth_[static_cast<std::size_t>(state)] = std::max(state_depth_[static_cast<std::size_t>(state)], key.second);
          }
    }
    return state_depth_[s] <= depth_[next.index()];
  }

  template <class Give>
  void give_values(std::pair<Actor, std::int32_t> key, const Give& give) {
    for (const auto& [where, number] : exported_) {
      const ValueId v(where.first);
      if (actor_[v.index()] == key.first && depth_[v.index()] == key.second && wanted(v)) give(v, number, ResultMode::store);
    }
    const auto clones = clones_.find(key);
    if (clones == clones_.end() || key.first != 0) return;
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
            if (actor_[operand.index()] != key.first || depth_[operand.index()] != key.second) read_elsewhere_[operand.index()] = true;
      for (std::size_t o = static_cast<std::size_t>(graph_.state); o < graph_.outputs.size(); ++o)
        read_elsewhere_[graph_.outputs[o].index()] = true;
      for (std::size_t s = 0; s < home_.size(); ++s)
        if (!updated_in_place(s)) read_elsewhere_[graph_.outputs[s].index()] = true;
    }
    return read_elsewhere_[v.index()];
  }

  // Next states that could not be written where they arose, and copies of what only the owner updated.
  void finish_state() {
    for (std::size_t s = 0; s < home_.size(); ++s) {
      const ValueId next = graph_.outputs[s];
      if (next == graph_.inputs[s] || !dependent_[next.index()]) continue;
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
      output.reads = {exported_.at({v.value, dependent_[v.index()] ? actor_[v.index()] : 0})};
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
  std::vector<Actor> actor_;                         // of dependent values
  std::vector<std::int32_t> depth_;
  std::vector<std::int32_t> input_index_;
  std::vector<Actor> home_;  // of each state
  std::vector<std::set<Actor>> holders_;
  std::vector<std::int32_t> written_state_, state_depth_;
  std::vector<bool> read_elsewhere_;
  std::map<std::pair<Actor, std::int32_t>, std::vector<std::size_t>> after_;  // (actor, depth): dependent ops
  std::map<std::pair<Actor, std::int32_t>, std::set<std::int32_t>> clones_;   // independent values asked for there
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> exported_;           // (value, actor): instance
  std::map<std::pair<std::int32_t, Actor>, std::int32_t> before_;             // (value, actor): instance, computed before the loop
};

}  // namespace

void place_outside(Lowering& lowering) {
  Outside(lowering).run();
}

}  // namespace penstock
