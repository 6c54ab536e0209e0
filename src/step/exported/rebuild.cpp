// SPDX-License-Identifier: Apache-2.0
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
  for (ValueId& operand : made.operands) operand = ValueId(made_[operand].value());
  const std::vector<ValueId> results = builder.append_typed(std::move(made), types_of(from_, op.results));
  for (std::size_t i = 0; i < results.size(); ++i) made_[op.results[i]] = {&builder, results[i].value};
}

Graph Rebuild::finish() {
  for (ValueId output : from_.outputs) builder.graph.outputs.emplace_back(made_[output].value());
  builder.graph.state = from_.state;
  builder.graph.output_names = from_.output_names;
  return eliminate_dead_code(builder.graph);
}

}  // namespace penstock
