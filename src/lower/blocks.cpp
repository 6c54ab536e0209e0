// Pass: which tensors the devices of an actor hold in equal shares (ZeRO, Rajbhandari et al., 1910.02054).
//
// A class is a gradient that the loop leaves behind with all that is computed of it element by element, and the states among that: a
// parameter and its moments. Sums over all its elements may leave the class (the norm that clips). Where every gradient of one accumulator
// is in such a class, they are a block: its sum can be scattered instead of given to all, and each device updates its share.
#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/invariant.h"
#include "lower/passes.h"
#include "ops/definition.h"
#include "program/piece.h"

namespace penstock {
namespace {

// The one actor that each stage runs on; none: several, or one of a single device.
IdVector<StageId, ActorId> actors_of_stages(const LowerInput& input) {
  std::vector<std::set<ActorId>> actors(input.dag.names.size());
  for (const ActorId actor : ids<ActorId>(input.actors()))
    for (const Action& action : input.schedule.actors[actor.value]) actors[action.stage].insert(actor);
  IdVector<StageId, ActorId> out;
  for (const std::set<ActorId>& of : actors) out.push_back(of.size() == 1 && input.devices(*of.begin()) > 1 ? *of.begin() : ActorId());
  return out;
}

// Values that depend on the loop's results.
IdVector<ValueId, bool> dependent_values(const LowerInput& input) {
  IdVector<ValueId, bool> dependent(input.step.values.size());
  for (std::size_t i = 0; i < input.step.ops.size(); ++i) {
    const Op& op = input.step.ops[i];
    const bool depends = i == input.loop || std::ranges::any_of(op.operands, [&](ValueId v) { return dependent[v]; });
    for (ValueId v : op.results) dependent[v] = depends;
  }
  return dependent;
}

// Stages whose tasks read each state as it is; none among them: what is computed before the loop does.
IdVector<InputId, std::vector<StageId>> readers_of_states(const LowerInput& input, const IdVector<ValueId, bool>& dependent) {
  IdVector<InputId, std::vector<StageId>> readers(input.step.state);
  const auto note = [&](ValueId v, StageId stage) {
    const InputId state = input.input_of[v];
    if (!input.is_state(state)) return;
    std::vector<StageId>& list = readers[state];
    if (std::ranges::find(list, stage) == list.end()) list.push_back(stage);
  };
  for (const Bundle& bundle : input.dag.bundles)
    if (bundle.source == Bundle::Source::invariant)
      for (StageTaskId t : bundle.readers) note(input.loop_op().operands[bundle.members[0]], input.dag.tasks[t].stage);
  for (std::size_t i = 0; i < input.step.ops.size(); ++i) {
    const Op& op = input.step.ops[i];
    if (i != input.loop && std::ranges::none_of(op.operands, [&](ValueId v) { return dependent[v]; }))
      for (ValueId v : op.operands) note(v, {});
  }
  return readers;
}

// Values in classes; each class goes by one of its values.
class Classes {
 public:
  explicit Classes(std::size_t values) : parent_(values) { std::iota(parent_.begin(), parent_.end(), std::size_t{0}); }

  std::size_t of(ValueId v) const {
    std::size_t root = v.index();
    while (parent_[root] != root) root = parent_[root] = parent_[parent_[root]];
    return root;
  }
  void join(ValueId a, ValueId b) { parent_[of(a)] = of(b); }

 private:
  mutable std::vector<std::size_t> parent_;  // towards the class's value; paths get shorter as they are walked
};

struct Class {
  std::vector<ResultId> gradients;
  std::vector<InputId> states;
  bool is_whole = false;  // something needs a tensor of it as a whole
};

// The classes of all values, by Classes::of.
struct Classified {
  Classes classes;
  std::map<std::size_t, Class> by_value;

  const Class& of(ValueId v) const { return by_value.at(classes.of(v)); }
};

bool is_tensor(const Graph& step, ValueId v) {
  return !step.type(v).shape.empty();
}

// Joins what is computed of one another element by element, behind the loop. Gives the values that are needed as a whole.
std::vector<ValueId> join_elementwise(const LowerInput& input, const IdVector<ValueId, bool>& dependent, Classes& classes) {
  const Graph& step = input.step;
  std::vector<ValueId> whole;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Op& op = step.ops[i];
    if (i == input.loop || op.results.empty() || !dependent[op.results[0]]) continue;
    const ShareRule rule = share_rule(step, op);
    if (rule == ShareRule::sum) continue;
    for (ValueId v : op.operands) {
      if (!is_tensor(step, v)) continue;
      if (rule == ShareRule::none || step.type(v).shape != step.type(op.results[0]).shape) {
        whole.insert(whole.end(), {v, op.results[0]});
      } else if (dependent[v] || input.input_of[v]) {
        classes.join(v, op.results[0]);
      }
    }
    for (ValueId v : op.results) classes.join(v, op.results[0]);
  }
  return whole;
}

Classified classify(const LowerInput& input, const IdVector<ValueId, bool>& dependent) {
  const Graph& step = input.step;
  Classified out{Classes(step.values.size()), {}};
  const auto class_of = [&](ValueId v) -> Class& { return out.by_value[out.classes.of(v)]; };
  for (ValueId v : join_elementwise(input, dependent, out.classes)) class_of(v).is_whole = true;
  const std::vector<ValueId>& results = input.loop_op().results;
  for (std::size_t r = 0; r < results.size(); ++r) class_of(results[r]).gradients.push_back(ResultId(r));
  for (std::int32_t s = 0; s < step.state; ++s) {
    const ValueId now = step.inputs[s], next = step.outputs[s];
    class_of(now).states.push_back(InputId(s));
    if (next != now && out.classes.of(next) != out.classes.of(now)) class_of(now).is_whole = true;
  }
  return out;
}

// What decides whether a gradient can be held in shares.
struct Sharers {
  const LowerInput& input;
  IdVector<StageId, ActorId> actor;
  IdVector<InputId, std::vector<StageId>> readers;  // of each state
  Classified classified;

  const Sharding& sharding() const { return input.options.sharding; }
  ActorId actor_of_task(StageTaskId task) const { return actor[input.dag.tasks[task].stage]; }
};

// A member of an axis has a piece of the tensor.
std::string tensor_of(const Graph& step, ValueId state) {
  return parse_piece(step.values[state].name).tensor;
}

bool is_parameter(const Sharers& sharers, InputId state) {
  const std::string name = tensor_of(sharers.input.step, sharers.input.value(state));
  const std::vector<std::string>& others = sharers.sharding().parameters;
  return !sharers.readers[state].empty() || std::ranges::find(others, name) != others.end();
}

// The state among them that the loop reads; none: there is none. A member of an axis may not read a parameter that others read, as where
// the first adds a bias for all, and holds it as they do.
InputId parameter_of(const Sharers& sharers, const Class& of) {
  const bool has_members = !sharers.input.axes.empty();
  const auto read =
      std::ranges::find_if(of.states, [&](InputId s) { return !sharers.readers[s].empty() || (has_members && is_parameter(sharers, s)); });
  return read == of.states.end() ? InputId() : *read;
}

// The class of a gradient that is summed on the actor, if it can be held in shares.
const Class* sharable(const Sharers& sharers, ResultId result, ActorId actor) {
  const Graph& step = sharers.input.step;
  const ValueId gradient = sharers.input.loop_op().results[result.index()];
  const Class& found = sharers.classified.of(gradient);
  if (!is_tensor(step, gradient) || found.is_whole || found.gradients.size() != 1) return nullptr;
  const bool all = sharers.sharding().level == 3;
  for (InputId s : found.states) {
    if (step.type(sharers.input.value(s)).dtype != step.type(gradient).dtype) return nullptr;
    for (StageId reader : sharers.readers[s])
      if (reader ? sharers.actor[reader] != actor : all) return nullptr;
  }
  const auto parameters = std::ranges::count_if(found.states, [&](InputId s) { return is_parameter(sharers, s); });
  const bool gathers = parameters == 1 && parameter_of(sharers, found);
  return !all || found.states.empty() || gathers ? &found : nullptr;
}

void add_block(Draft& draft, const Sharers& sharers, ShareBlock block) {
  for (InputId state : block.parameters) block.readers.insert(sharers.readers[state].begin(), sharers.readers[state].end());
  draft.blocks.push_back(std::move(block));
}

// The tensors of one accumulator, if all of them can be held in shares.
void share_accumulator(Draft& draft, const Sharers& sharers, const Bundle& bundle) {
  const ActorId actor = sharers.actor_of_task(bundle.producers[0]);
  if (!actor || !can_be_summed(bundle.types[0].dtype)) return;
  if (std::ranges::any_of(bundle.producers, [&](StageTaskId t) { return sharers.actor_of_task(t) != actor; })) return;
  const bool all = sharers.sharding().level == 3;
  std::vector<const Class*> classes;
  ShareBlock block{bundle.types, {}, {}};
  for (std::size_t i = 0; i < bundle.members.size(); ++i) {
    classes.push_back(sharable(sharers, ResultId(bundle.members[i]), actor));
    if (!classes.back() || bundle.types[i].dtype != bundle.types[0].dtype) return;
    if (all && !classes.back()->states.empty()) block.parameters.push_back(parameter_of(sharers, *classes.back()));
  }
  if (!block.parameters.empty() && block.parameters.size() < block.members.size()) return;
  const BlockId number(draft.blocks.size());
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const Member member{number, static_cast<std::int32_t>(i)};
    draft.sharded_results[ResultId(bundle.members[i])] = member;
    for (InputId s : classes[i]->states)
      if (all || !is_parameter(sharers, s)) draft.sharded_states[s] = member;
  }
  add_block(draft, sharers, std::move(block));
}

// Parameters that another program updates.
void share_parameters(Draft& draft, const Sharers& sharers, const std::vector<std::string>& names) {
  const Graph& step = sharers.input.step;
  ShareBlock block;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(step.inputs.begin(), step.inputs.begin() + step.state, [&](ValueId v) { return tensor_of(step, v) == name; });
    const InputId state(found - step.inputs.begin());
    invariant(sharers.input.is_state(state) && std::ranges::find(sharers.readers[state], StageId()) == sharers.readers[state].end(),
              "a sharded parameter is a state of every program, which only its stages read");
    if (draft.sharded_states.contains(state)) return;
    block.members.push_back(step.type(*found));
    block.parameters.push_back(state);
  }
  const BlockId number(draft.blocks.size());
  for (std::size_t i = 0; i < names.size(); ++i) draft.sharded_states[block.parameters[i]] = {number, static_cast<std::int32_t>(i)};
  add_block(draft, sharers, std::move(block));
}

}  // namespace

void find_blocks(const LowerInput& input, Draft& draft) {
  if (input.options.sharding.level == 0 || input.parts == 1) return;
  const IdVector<ValueId, bool> dependent = dependent_values(input);
  const Sharers sharers{input, actors_of_stages(input), readers_of_states(input, dependent), classify(input, dependent)};
  for (const Bundle& bundle : input.dag.bundles)
    if (bundle.source == Bundle::Source::accumulator) share_accumulator(draft, sharers, bundle);
  for (const std::vector<std::string>& names : input.options.sharding.blocks) share_parameters(draft, sharers, names);
}

}  // namespace penstock
