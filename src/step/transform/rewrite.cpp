// SPDX-License-Identifier: Apache-2.0
#include "transform/rewrite.h"

#include <utility>

namespace penstock {

Rewrite::Rewrite(const Graph& from) : graph(empty_like(from)), from_(from), map_(from.values.size()) {}

Rewrite Rewrite::with_inputs(const Graph& from) {
  Rewrite out(from);
  for (const ValueId input : from.inputs) out.copy_input(input);
  return out;
}

ValueId Rewrite::fresh(ValueId old) {
  const Value& value = from_.values[old];
  return graph.add_value(value.type, value.name);
}

void Rewrite::copy_input(ValueId old) {
  map_[old] = fresh(old);
  graph.inputs.push_back(map_[old]);
}

Op& Rewrite::copy(const Op& op) {
  Op made = op;
  for (ValueId& operand : made.operands) operand = map_[operand];
  for (ValueId& result : made.results) {
    const ValueId old = result;
    result = map_[old] = fresh(old);
  }
  graph.ops.push_back(std::move(made));
  return graph.ops.back();
}

Op& Rewrite::copy(const Op& loop, Graph body) {
  Op& made = copy(loop);
  made.body = std::make_shared<const Graph>(std::move(body));
  return made;
}

Graph Rewrite::finish() {
  for (ValueId output : from_.outputs) graph.outputs.push_back(map_[output]);
  return std::move(graph);
}

ValueId add_like(Graph& graph, const Op& marks, std::string_view name, std::vector<ValueId> operands, Attributes attributes,
                 TensorType type) {
  Op op = marks;
  op.name = name;
  op.operands = std::move(operands);
  op.attributes = std::move(attributes);
  op.results = {graph.add_value(std::move(type))};
  graph.ops.push_back(std::move(op));
  return graph.ops.back().results[0];
}

}  // namespace penstock
