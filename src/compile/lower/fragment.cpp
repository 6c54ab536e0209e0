// SPDX-License-Identifier: Apache-2.0
#include "lower/fragment.h"

#include "base/text.h"

namespace penstock {

ValueId Fragment::import(const Draft& draft, const InstancePart& origin) {
  const auto [first, added] = first_.try_emplace(origin.instance, graph.inputs.size());
  if (added) {
    reads.push_back(origin.instance);
    for (const TensorType& type : draft.instances[origin.instance].types) graph.add_input(type, concat("x", graph.inputs.size()));
  }
  return graph.inputs[first->second + origin.part];
}

ValueId Fragment::need(const Draft& draft, ValueId value, const FindInstance& find) {
  if (const auto found = local_.find(value); found != local_.end()) return found->second;
  if (const std::optional<InstancePart> origin = find(value)) return local_[value] = import(draft, *origin);
  copy(draft, step_.ops[producer_[value]], find);
  return local_.at(value);
}

void Fragment::copy(const Draft& draft, const Op& op, const FindInstance& find) {
  if (local_.contains(op.results[0])) return;
  Op out = op;
  for (ValueId& operand : out.operands) operand = need(draft, operand, find);
  for (ValueId& result : out.results) {
    const ValueId made = graph.add_value(step_.type(result));
    local_[result] = made;
    result = made;
  }
  graph.ops.push_back(std::move(out));
}

}  // namespace penstock
