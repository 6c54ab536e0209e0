// SPDX-License-Identifier: Apache-2.0
#include "exported/subgraph.h"

#include <algorithm>

namespace penstock {

Graph subgraph(const Graph& graph, const std::string& name, const std::vector<GivenValue>& given, const std::vector<ValueId>& outputs) {
  IdVector<ValueId, bool> is_given(graph.values.size());
  for (const GivenValue& one : given) is_given[one.value] = true;
  const IdVector<ValueId, bool> needed = needed_for(graph, outputs, is_given);
  Graph part;
  part.name = name;
  IdVector<ValueId, ValueId> made(graph.values.size());
  for (ValueId input : graph.inputs)
    if (needed[input] && !is_given[input]) made[input] = part.add_input(graph.type(input), graph.values[input].name);
  for (const GivenValue& one : given)
    if (needed[one.value]) made[one.value] = part.add_input(graph.type(one.value), one.name);
  for (const Op& op : graph.ops) {
    if (std::ranges::none_of(op.results, [&](ValueId result) { return needed[result] && !is_given[result]; })) continue;
    Op copy = op;
    for (ValueId& operand : copy.operands) operand = made[operand];
    for (ValueId& result : copy.results) {
      const ValueId fresh = part.add_value(graph.type(result));
      if (!is_given[result]) made[result] = fresh;
      result = fresh;
    }
    part.ops.push_back(std::move(copy));
  }
  for (ValueId output : outputs) part.outputs.push_back(made[output]);
  return part;
}

}  // namespace penstock
