// SPDX-License-Identifier: Apache-2.0
#include "transform/table_update.h"

#include <algorithm>

#include "base/text.h"
#include "ops/definition.h"
#include "ops/layouts.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

struct UpdateFinder {
  const Graph& step;
  OpId loop;
  ValueId gradient;
  IdVector<ValueId, OpId> producer{};
  IdVector<ValueId, bool> is_gradient{}, is_state{};  // by value
  IdVector<OpId, bool> updates{};
  TableUpdate out{};

  bool is_scalar(ValueId v) const { return step.type(v).shape.empty(); }
  bool is_table(ValueId v) const { return step.type(v).shape == step.type(gradient).shape; }
};

// Whether the op maps a gradient element by element, zeros to zeros, or adds up all its elements.
bool fits_gradient(const UpdateFinder& f, const Op& op, ValueId gradient) {
  if (op.name == "sum") return f.is_scalar(op.results[0]);
  const auto place = static_cast<std::size_t>(std::ranges::find(op.operands, gradient) - op.operands.begin());
  return op.name != "slice" && keeps_zeros(op, place) &&
         std::ranges::all_of(op.operands, [&](ValueId v) { return v == gradient || f.is_scalar(v); });
}

void find_gradients(UpdateFinder& f) {
  f.is_gradient[f.gradient] = true;
  f.out.gradients = {f.gradient};
  for (const OpId o : f.step.ops.ids()) {
    const Op& op = f.step.ops[o];
    const auto read = std::ranges::find_if(op.operands, [&](ValueId v) { return f.is_gradient[v]; });
    if (read == op.operands.end() || op.name == "sum" || !fits_gradient(f, op, *read)) continue;
    f.is_gradient[op.results[0]] = true;
    f.out.gradients.push_back(op.results[0]);
  }
}

// The states of the table's shape whose next values are made of the gradient by values of that shape.
void find_states(UpdateFinder& f) {
  IdVector<ValueId, bool> reached = f.is_gradient;
  for (const Op& op : f.step.ops)
    if (std::ranges::any_of(op.operands, [&](ValueId v) { return reached[v]; }))
      for (const ValueId result : op.results) reached[result] = f.is_table(result);
  for (const InputId state : ids<InputId>(f.step.state)) {
    const ValueId now = f.step.inputs[state.index()], next = f.step.outputs[state.index()];
    if (!reached[next] || !f.is_table(now)) continue;
    f.out.states.push_back(state);
    f.is_state[now] = true;
  }
}

// The ops behind the loop that make the states' next values of the gradients and of the states.
void find_ops(UpdateFinder& f) {
  std::vector<ValueId> wanted;
  for (const InputId state : f.out.states) wanted.push_back(f.step.outputs[state.index()]);
  while (!wanted.empty()) {
    const ValueId v = wanted.back();
    wanted.pop_back();
    const OpId o = f.producer[v];
    if (!f.is_table(v) || f.is_gradient[v] || !o || o <= f.loop || f.updates[o]) continue;
    f.updates[o] = true;
    wanted.insert(wanted.end(), f.step.ops[o].operands.begin(), f.step.ops[o].operands.end());
  }
  for (const OpId o : f.step.ops.ids())
    if (f.updates[o]) f.out.ops.push_back(o);
}

// Whether the value is made of the gradient by element, or by the update.
bool is_made(const UpdateFinder& f, ValueId v) {
  return f.is_gradient[v] || (f.producer[v] && f.updates[f.producer[v]]);
}

bool goes_by_element(const UpdateFinder& f, const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->layout == all_dims && definition->views < 0 && !definition->collective &&
         std::ranges::all_of(
             op.operands, [&](ValueId v) { return f.is_scalar(v) || f.is_state[v] || is_made(f, v); }) &&
         std::ranges::all_of(op.results, [&](ValueId v) { return f.is_table(v); });
}

// Whether the op reads, without being part of the update, more of it than a sum of gradients.
bool reads_table(const UpdateFinder& f, OpId o) {
  const Op& op = f.step.ops[o];
  return !f.updates[o] &&
         std::ranges::any_of(op.operands, [&](ValueId v) { return is_made(f, v) && !(f.is_gradient[v] && fits_gradient(f, op, v)); });
}

std::string obstacle_to(const UpdateFinder& f) {
  if (f.out.states.empty()) return "its gradient updates nothing of its shape";
  for (const OpId o : f.out.ops)
    if (!goes_by_element(f, f.step.ops[o]))
      return concat("its update has ", quote(f.step.ops[o].name), ", which does not go element by element");
  for (const OpId o : f.step.ops.ids())
    if (reads_table(f, o)) return concat("of its update ", quote(f.step.ops[o].name), " reads all rows");
  for (std::size_t i = 0; i < f.step.outputs.size(); ++i) {
    const ValueId v = f.step.outputs[i];
    const bool is_own = std::ranges::find(f.out.states, InputId(static_cast<std::int64_t>(i))) != f.out.states.end();
    if (!is_own && is_made(f, v)) return "the step gives all of its update";
  }
  return "";
}

}  // namespace

bool is_lookup_gradient(const Op& op) {
  return op.name == "embedding_dense_backward" || op.name == "embedding_bag_dense_backward";
}

bool keeps_zeros(const Op& op, std::size_t operand) {
  if (op.name == "div") return operand == 0 && (op.operands.size() == 1 || op.operands[1] != op.operands[0]);
  return op.name == "mul" || op.name == "neg" || op.name == "to" || op.name == "slice";
}

TableUpdate update_of_table(const Graph& step, OpId loop, ValueId gradient) {
  const std::size_t values = step.values.size();
  UpdateFinder f{step, loop, gradient, producers(step)};
  f.is_gradient.resize(values);
  f.is_state.resize(values);
  f.updates.resize(step.ops.size());
  find_gradients(f);
  find_states(f);
  find_ops(f);
  f.out.obstacle = obstacle_to(f);
  return std::move(f.out);
}

}  // namespace penstock
