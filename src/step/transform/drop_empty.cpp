// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/invariant.h"
#include "transform/conversions.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {

Graph drop_empty(const Graph& graph, const std::vector<bool>& kept_inputs, const std::vector<bool>& kept_outputs) {
  Rewrite out(graph);
  const auto zeros = [&](const TensorType& type) {
    return add_beside({out.graph, Op(), {}}, "full", {}, {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", type.shape}});
  };
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& [type, name] = graph.values[graph.inputs[i]];
    if (type.elements() > 0)
      out.copy_input(graph.inputs[i]);
    else if (kept_inputs[i])
      out.graph.add_input({type.dtype, {1}}, name);
  }
  for (const Op& op : graph.ops) {
    if (graph.type(op.results[0]).elements() == 0) continue;
    if (op.name == "sum" && !out[op.operands[0]]) {
      out[op.results[0]] = zeros(graph.type(op.results[0]));
      continue;
    }
    invariant(std::ranges::all_of(op.operands, [&](ValueId v) { return bool(out[v]); }), "only a sum makes something of nothing");
    out.copy(op);
  }
  for (std::size_t o = 0; o < graph.outputs.size(); ++o) {
    const ValueId v = out[graph.outputs[o]];
    if (v || kept_outputs[o]) out.graph.outputs.push_back(v ? v : zeros({graph.type(graph.outputs[o]).dtype, {1}}));
  }
  return eliminate_dead_code(out.graph);
}

}  // namespace penstock
