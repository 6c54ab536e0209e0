// SPDX-License-Identifier: Apache-2.0
#include "ops/inline_graph.h"

#include <algorithm>

namespace penstock {

std::vector<Tensor> inline_graph(Builder& builder, const Graph& graph, const std::vector<Tensor>& operands) {
  IdVector<ValueId, ValueId> made(graph.values.size());
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) made[graph.inputs[i]] = ValueId(capture(builder, operands[i]).value());
  const Marks before = builder.marks;
  std::int64_t& next = builder.outermost().next_sequence;
  const std::int64_t base = next;
  for (const Op& op : graph.ops) {
    Op copy = op;
    for (ValueId& operand : copy.operands) operand = made[operand];
    builder.marks = {op.stage, op.origin, op.phase, op.sequence < 0 ? -1 : base + op.sequence};
    next = std::max(next, base + op.sequence + 1);
    const std::vector<ValueId> results = builder.append_typed(std::move(copy), types_of(graph, op.results));
    for (std::size_t i = 0; i < results.size(); ++i) made[op.results[i]] = results[i];
  }
  builder.marks = before;
  std::vector<Tensor> out;
  for (ValueId output : graph.outputs) out.emplace_back(&builder, made[output].value);
  return out;
}

}  // namespace penstock
