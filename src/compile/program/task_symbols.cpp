// SPDX-License-Identifier: Apache-2.0
#include "program/task_symbols.h"

#include "base/invariant.h"

namespace penstock::checks {
namespace {

// The part of a result's symbol that the op gives, whatever it reads.
Hash hash_of_op(const Op& op) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(Origin::op));
  hash.add(op.name);
  for (const auto& [name, value] : op.attributes) {
    hash.add(name);
    hash.add(text_of(value));
  }
  if (op.body) hash.add(structural_hash(*op.body));
  return hash;
}

}  // namespace

TaskSymbols::TaskSymbols(const Graph& graph) : size_(graph.values.size()) {
  const auto append = [](std::vector<std::int32_t>& to, const std::vector<ValueId>& values) {
    for (const ValueId value : values) to.push_back(value.value);
    return static_cast<std::int32_t>(values.size());
  };
  append(inputs_, graph.inputs);
  for (const Op& op : graph.ops) steps_.push_back({hash_of_op(op), append(operands_, op.operands), append(results_, op.results)});
  append(outputs_, graph.outputs);
}

void TaskSymbols::run(std::span<const Symbol> inputs, std::vector<Symbol>& values, std::vector<Symbol>& outputs) const {
  invariant(inputs.size() == inputs_.size(), "a run has the inputs of its task");
  if (values.size() < size_) values.resize(size_);
  for (std::size_t i = 0; i < inputs.size(); ++i) values[static_cast<std::size_t>(inputs_[i])] = inputs[i];
  auto operand = operands_.begin();
  auto result = results_.begin();
  for (const Step& step : steps_) {
    Hash hash = step.begin;
    for (std::int32_t i = 0; i < step.operands; ++i) hash.add(values[static_cast<std::size_t>(*operand++)]);
    for (std::int32_t i = 0; i < step.results; ++i) {
      values[static_cast<std::size_t>(*result++)] = hash.value();
      hash.add(std::uint64_t{1});
    }
  }
  outputs.clear();
  for (const std::int32_t output : outputs_) outputs.push_back(values[static_cast<std::size_t>(output)]);
}

}  // namespace penstock::checks
