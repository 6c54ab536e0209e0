#include "exported/rebuild.h"

#include <algorithm>

#include "transform/passes.h"

namespace penstock {

Rebuild::Rebuild(const Graph& from) : builder(from.name), from_(from), made_(from.values.size()) {
  for (ValueId input : from.inputs) {
    const Value& value = from.values[input];
    made_[input] = {&builder, builder.graph.add_input(value.type, value.name).value};
  }
  for (const Op& op : from.ops) builder.next_sequence = std::max(builder.next_sequence, op.sequence + 1);
}

void Rebuild::copy(const Op& op) {
  mark(op);
  Op made = op;
  std::vector<TensorType> types;
  for (ValueId& operand : made.operands) operand = ValueId(made_[operand].value());
  for (ValueId result : op.results) types.push_back(from_.type(result));
  const std::vector<ValueId> results = builder.append_typed(std::move(made), std::move(types));
  for (std::size_t i = 0; i < results.size(); ++i) made_[op.results[i]] = {&builder, results[i].value};
}

Graph Rebuild::finish() {
  for (ValueId output : from_.outputs) builder.graph.outputs.emplace_back(made_[output].value());
  builder.graph.state = from_.state;
  builder.graph.output_names = from_.output_names;
  return eliminate_dead_code(builder.graph);
}

}  // namespace penstock
