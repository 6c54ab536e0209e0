// SPDX-License-Identifier: Apache-2.0
// Pass: which tensors lie flat along the devices of an actor (ZeRO, Rajbhandari et al., 1910.02054), and which of them are a block.
//
// Layouts are decided for the code behind the loop, with each gradient that the loop leaves behind flat: ops keep it so, the states among
// what they read, a parameter and its moments, lie like it, and sums over all its elements (the norm that clips) are terms. Where every
// gradient of one accumulator can lie so, they are a block: its sum can be scattered instead of given to all, and each device updates what
// it has. A tensor that an op needs otherwise stays whole.
//
// Where all that reads a block's parameters reads them cast to half their width, each device casts its share and the cast shares are
// gathered, as a cast commutes with a gather. Parameters that are read cast have blocks of their own (those of a norm are read as they
// are), and the sums of their gradients travel in full width. This needs elements at the same places in both widths, as those of tensors
// of a multiple of 32 elements are; a block with others ahead of a tensor is gathered as it is.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/invariant.h"
#include "lower/passes.h"
#include "ops/definition.h"
#include "program/piece.h"
#include "transform/layouts.h"

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

// Values that are made behind the loop: all but those that it, or an output that does not depend on it, is made of.
IdVector<ValueId, bool> values_behind(const LowerInput& input) {
  const IdVector<ValueId, bool> dependent = dependent_values(input);
  IdVector<ValueId, bool> before(input.step.values.size()), behind(input.step.values.size());
  for (ValueId v : input.loop_op().operands) before[v] = true;
  for (ValueId v : input.step.outputs) before[v] = before[v] || !dependent[v];
  for (std::size_t i = input.step.ops.size(); i-- > 0;) {
    const Op& op = input.step.ops[i];
    const bool needed = i == input.loop || std::ranges::any_of(op.results, [&](ValueId v) { return before[v]; });
    for (ValueId v : op.operands) before[v] = before[v] || needed;
    for (ValueId v : op.results) behind[v] = i == input.loop || !needed;
  }
  return behind;
}

// Stages whose tasks read each state as it is; none among them: what is computed before the loop does.
IdVector<InputId, std::vector<StageId>> readers_of_states(const LowerInput& input, const IdVector<ValueId, bool>& behind) {
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
    if (i != input.loop && std::ranges::none_of(op.results, [&](ValueId v) { return behind[v]; }))
      for (ValueId v : op.operands) note(v, {});
  }
  return readers;
}

// The dtype in which the loop reads each state: that of its casts, where these are all that reads it, else its own.
IdVector<InputId, DType> dtypes_read(const LowerInput& input) {
  const Graph& body = *input.loop_op().body;
  std::map<ValueId, std::set<DType>> read;
  for (const Op& op : body.ops)
    for (ValueId v : op.operands) read[v].insert(body.type(op.name == "to" ? op.results[0] : v).dtype);
  IdVector<InputId, DType> out;
  for (const InputId s : ids<InputId>(input.step.state)) out.push_back(input.step.type(input.value(s)).dtype);
  for (std::size_t o = 0; o < body.inputs.size(); ++o) {
    const InputId state = input.input_of_operand(static_cast<std::int32_t>(o));
    if (const std::set<DType>& dtypes = read[body.inputs[o]]; input.is_state(state) && dtypes.size() == 1) out[state] = *dtypes.begin();
  }
  return out;
}

bool is_tensor(const Graph& step, ValueId v) {
  return !step.type(v).shape.empty();
}

// A gradient that might lie flat: which states lie like it behind the loop, and whether anything needs it whole.
struct Gradient {
  std::vector<InputId> states;  // that lie like it
  bool is_whole = false;        // something needs it, or what is made of it, as a whole
};

// Returns a layout of its own for each gradient, as if all were one block and each one element of it: no two of them lie alike.
Layout layout_of(ResultId gradient) {
  return {Layout::Kind::flat, -1, gradient.value, 1};
}

// The ops behind the loop; all else that they read is there.
Graph code_behind(const LowerInput& input, const IdVector<ValueId, bool>& behind) {
  Graph out = input.step;
  out.ops = {};
  for (std::size_t i = 0; i < input.step.ops.size(); ++i)
    if (const Op& op = input.step.ops[i]; i != input.loop && !op.results.empty() && behind[op.results[0]]) out.ops.push_back(op);
  return out;
}

// A state may be read by itself before what is made of it meets a gradient, so that it was left whole: then it lies as its next value does.
bool settle_states(const LowerInput& input, const GraphLayouts& found, const Graph& behind, IdVector<ValueId, Layout>& values,
                   IdVector<ValueId, bool>& open) {
  bool settled = false;
  for (const InputId s : ids<InputId>(behind.state)) {
    const ValueId now = input.value(s), next = behind.outputs[s.index()];
    if (!found.values[next].is_flat() || found.values[now] == found.values[next] || behind.type(now) != behind.type(next)) continue;
    values[now] = found.values[next];
    open[now] = false;
    settled = true;
  }
  return settled;
}

GraphLayouts layouts_of(const LowerInput& input, const Graph& behind) {
  IdVector<ValueId, Layout> values(behind.values.size());
  IdVector<ValueId, bool> open(behind.values.size());
  for (const InputId s : ids<InputId>(behind.state)) open[input.value(s)] = true;
  for (std::size_t r = 0; const ValueId v : input.loop_op().results) {
    if (is_tensor(behind, v)) values[v] = layout_of(ResultId(r));
    ++r;
  }
  const GraphLayouts found = decide_layouts(behind, values, open, 2);
  return settle_states(input, found, behind, values, open) ? decide_layouts(behind, std::move(values), std::move(open), 2) : found;
}

IdVector<ResultId, Gradient> gradients_of(const LowerInput& input, const IdVector<ValueId, bool>& made_behind) {
  const Graph behind = code_behind(input, made_behind);
  const GraphLayouts layouts = layouts_of(input, behind);
  IdVector<ResultId, Gradient> out(input.loop_op().results.size());
  const auto gradient_of = [&](ValueId v) {
    const Layout& layout = layouts.values[v];
    return layout.is_flat() ? &out[ResultId(layout.outer)] : nullptr;
  };
  for (const OpId i : behind.ops.ids()) {
    const std::vector<ValueId>& operands = behind.ops[i].operands;
    bool as_it_lies = true;
    for (std::size_t o = 0; o < operands.size(); ++o)
      as_it_lies = as_it_lies && (!gradient_of(operands[o]) || layouts.rows[i].operands[o] == layouts.values[operands[o]]);
    for (ValueId v : operands)
      if (Gradient* gradient = gradient_of(v)) gradient->is_whole = gradient->is_whole || !as_it_lies;
  }
  for (const InputId s : ids<InputId>(behind.state)) {
    const ValueId now = input.value(s), next = behind.outputs[s.index()];
    Gradient* gradient = gradient_of(now);
    if (!gradient) continue;
    gradient->states.push_back(s);
    gradient->is_whole = gradient->is_whole || (next != now && layouts.values[next] != layouts.values[now]);
  }
  return out;
}

// The facts that decide whether a gradient can lie flat.
struct Sharers {
  const LowerInput& input;
  IdVector<StageId, ActorId> actor;
  IdVector<InputId, std::vector<StageId>> readers;  // of each state
  IdVector<InputId, DType> read_as;                 // each state, by the loop
  IdVector<ResultId, Gradient> gradients;
  std::set<std::string> parameters;  // CompileOptions::parameters

  ActorId actor_of_task(StageTaskId task) const { return actor[input.dag.tasks[task].stage]; }
};

// A member of an axis has a piece of the tensor.
std::string tensor_of(const Graph& step, ValueId state) {
  return parse_piece(step.values[state].name).tensor;
}

bool is_parameter(const Sharers& sharers, InputId state) {
  const std::string name = tensor_of(sharers.input.step, sharers.input.value(state));
  return !sharers.readers[state].empty() || sharers.parameters.contains(name);
}

// The state among them that the loop reads; none: there is none. A member of an axis may not read a parameter that others read, as where
// the first adds a bias for all, and holds it as they do.
InputId parameter_of(const Sharers& sharers, const Gradient& of) {
  const bool has_members = !sharers.input.lines.empty();
  const auto read =
      std::ranges::find_if(of.states, [&](InputId s) { return !sharers.readers[s].empty() || (has_members && is_parameter(sharers, s)); });
  return read == of.states.end() ? InputId() : *read;
}

// Whether the gradient, which is summed on the actor, can lie flat.
bool can_be_flat(const Sharers& sharers, ResultId result, ActorId actor) {
  const Graph& step = sharers.input.step;
  const ValueId gradient = sharers.input.loop_op().results[result.index()];
  const auto& [states, is_whole] = sharers.gradients[result];
  if (!is_tensor(step, gradient) || is_whole) return false;
  const bool all = sharers.input.options.zero == 3;
  for (InputId s : states) {
    if (step.type(sharers.input.value(s)).dtype != step.type(gradient).dtype) return false;
    for (StageId reader : sharers.readers[s])
      if (reader ? sharers.actor[reader] != actor : all) return false;
  }
  const auto parameters = std::ranges::count_if(states, [&](InputId s) { return is_parameter(sharers, s); });
  return !all || states.empty() || (parameters == 1 && parameter_of(sharers, sharers.gradients[result]));
}

// Whether the block's elements lie at the same places in a dtype half as wide, so that a device's share is the same elements in both.
bool lies_alike_in(const ShareBlock& block, DType narrow) {
  ShareBlock cast = block;
  for (TensorType& member : cast.members) member.dtype = narrow;
  const std::vector<std::int64_t> own_offsets = member_offsets(block), cast_offsets = member_offsets(cast);
  for (std::size_t m = 0; m < block.members.size(); ++m)
    if (own_offsets[m] != 2 * cast_offsets[m] || block.members[m].bytes() != 2 * cast.members[m].bytes()) return false;
  return true;
}

// A cast commutes with a gather, and of what is cast first half the bytes travel.
void find_cast(const Sharers& sharers, ShareBlock& block) {
  std::set<DType> read;
  for (InputId state : block.parameters) read.insert(sharers.read_as[state]);
  if (read.size() == 1 && lies_alike_in(block, *read.begin())) block.cast = *read.begin();
}

void add_block(Draft& draft, const Sharers& sharers, ShareBlock block) {
  find_cast(sharers, block);
  for (InputId state : block.parameters) block.readers.insert(sharers.readers[state].begin(), sharers.readers[state].end());
  draft.blocks.push_back(std::move(block));
}

// The tensors of one accumulator, if all of them can lie flat.
void share_accumulator(Draft& draft, const Sharers& sharers, const Bundle& bundle) {
  const ActorId actor = sharers.actor_of_task(bundle.producers[0]);
  if (!actor || !can_be_summed(bundle.types[0].dtype)) return;
  if (std::ranges::any_of(bundle.producers, [&](StageTaskId t) { return sharers.actor_of_task(t) != actor; })) return;
  const bool all = sharers.input.options.zero == 3;
  ShareBlock block{bundle.types, {}, {}};
  for (std::size_t i = 0; i < bundle.members.size(); ++i) {
    const ResultId result(bundle.members[i]);
    if (!can_be_flat(sharers, result, actor) || bundle.types[i].dtype != bundle.types[0].dtype) return;
    const Gradient& gradient = sharers.gradients[result];
    if (all && !gradient.states.empty()) block.parameters.push_back(parameter_of(sharers, gradient));
  }
  if (!block.parameters.empty() && block.parameters.size() < block.members.size()) return;
  const BlockId number(draft.blocks.size());
  for (std::size_t i = 0; i < bundle.members.size(); ++i) {
    const ResultId result(bundle.members[i]);
    const Member member{number, static_cast<std::int32_t>(i)};
    draft.sharded_results[result] = member;
    for (InputId s : sharers.gradients[result].states)
      if (all || !is_parameter(sharers, s)) draft.sharded_states[s] = member;
  }
  add_block(draft, sharers, std::move(block));
}

// Parameters that another program updates. Those of which this member of an axis does not have all are another member's.
void share_parameters(Draft& draft, const Sharers& sharers, const std::vector<std::string>& names) {
  const Graph& step = sharers.input.step;
  ShareBlock block;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(step.inputs.begin(), step.inputs.begin() + step.state, [&](ValueId v) { return step.values[v].name == name; });
    const InputId state(found - step.inputs.begin());
    if (!sharers.input.is_state(state) || draft.sharded_states.contains(state)) return;
    invariant(std::ranges::find(sharers.readers[state], StageId()) == sharers.readers[state].end(),
              "a sharded parameter is a state that only its stages read");
    block.members.push_back(step.type(*found));
    block.parameters.push_back(state);
  }
  const BlockId number(draft.blocks.size());
  for (std::size_t i = 0; i < names.size(); ++i) draft.sharded_states[block.parameters[i]] = {number, static_cast<std::int32_t>(i)};
  add_block(draft, sharers, std::move(block));
}

}  // namespace

void find_blocks(const LowerInput& input, Draft& draft) {
  if (input.options.zero == 0 || input.shares == 1) return;
  const IdVector<ValueId, bool> behind = values_behind(input);
  const std::vector<std::string>& parameters = input.options.parameters;
  const Sharers sharers{input,
                        actors_of_stages(input),
                        readers_of_states(input, behind),
                        dtypes_read(input),
                        gradients_of(input, behind),
                        {parameters.begin(), parameters.end()}};
  for (const Bundle& bundle : input.dag.bundles)
    if (bundle.source == Bundle::Source::accumulator) share_accumulator(draft, sharers, bundle);
  for (const std::vector<std::string>& names : input.options.blocks) share_parameters(draft, sharers, names);
}

}  // namespace penstock
