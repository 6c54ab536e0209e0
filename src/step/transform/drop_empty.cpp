#include "base/invariant.h"
#include "transform/conversions.h"
#include "transform/passes.h"

namespace penstock {

Graph drop_empty(const Graph& graph, const std::vector<bool>& kept_inputs, const std::vector<bool>& kept_outputs) {
  Graph out;
  out.name = graph.name;
  IdVector<ValueId, ValueId> made(graph.values.size());
  const auto zeros = [&](const TensorType& type) {
    return add_beside({out, Op(), {}}, "full", {}, {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}});
  };
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& [type, name] = graph.values[graph.inputs[i]];
    if (type.elements() > 0)
      made[graph.inputs[i]] = out.add_input(type, name);
    else if (kept_inputs[i])
      out.add_input({type.dtype, {1}}, name);
  }
  for (const Op& op : graph.ops) {
    if (graph.type(op.results[0]).elements() == 0) continue;
    if (op.name == "sum" && !made[op.operands[0]]) {
      made[op.results[0]] = zeros(graph.type(op.results[0]));
      continue;
    }
    Op copy = op;
    for (ValueId& v : copy.operands) {
      invariant(bool(made[v]), "only a sum makes something of nothing");
      v = made[v];
    }
    for (ValueId& v : copy.results) v = made[v] = out.add_value(graph.type(v));
    out.ops.push_back(std::move(copy));
  }
  for (std::size_t o = 0; o < graph.outputs.size(); ++o) {
    const ValueId v = made[graph.outputs[o]];
    if (v || kept_outputs[o]) out.outputs.push_back(v ? v : zeros({graph.type(graph.outputs[o]).dtype, {1}}));
  }
  return eliminate_dead_code(out);
}

}  // namespace penstock
