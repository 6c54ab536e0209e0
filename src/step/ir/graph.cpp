// SPDX-License-Identifier: Apache-2.0
#include "penstock/graph.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

ValueId Graph::add_value(TensorType type, std::string value_name) {
  values.push_back({std::move(type), std::move(value_name)});
  return ValueId(values.size() - 1);
}

ValueId Graph::add_input(TensorType type, std::string input_name) {
  inputs.push_back(add_value(std::move(type), std::move(input_name)));
  return inputs.back();
}

Graph empty_like(const Graph& graph) {
  Graph out;
  out.name = graph.name;
  out.state = graph.state;
  out.output_names = graph.output_names;
  return out;
}

std::vector<TensorType> types_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<TensorType> out;
  out.reserve(values.size());
  for (const ValueId value : values) out.push_back(graph.type(value));
  return out;
}

IdVector<ValueId, OpId> producers(const Graph& graph) {
  IdVector<ValueId, OpId> out(graph.values.size());
  for (const OpId op : graph.ops.ids())
    for (ValueId result : graph.ops[op].results) out[result] = op;
  return out;
}

IdVector<ValueId, int> use_counts(const Graph& graph) {
  IdVector<ValueId, int> out(graph.values.size());
  for (const Op& op : graph.ops)
    for (ValueId operand : op.operands) ++out[operand];
  for (ValueId output : graph.outputs) ++out[output];
  return out;
}

IdVector<ValueId, bool> needed_for(const Graph& graph, const std::vector<ValueId>& wanted, const IdVector<ValueId, bool>& given) {
  IdVector<ValueId, bool> needed(graph.values.size());
  for (const ValueId value : wanted) needed[value] = true;
  const auto is_made = [&](ValueId result) { return needed[result] && (given.empty() || !given[result]); };
  for (std::size_t i = graph.ops.size(); i-- > 0;)
    if (std::ranges::any_of(graph.ops[i].results, is_made))
      for (const ValueId operand : graph.ops[i].operands) needed[operand] = true;
  return needed;
}

std::string_view kind_name(const Attribute& attribute) {
  constexpr std::array<std::string_view, std::variant_size_v<Attribute>> kNames = {"bool", "i64",         "f64",        "dtype",
                                                                                   "text", "list of i64", "list of f64"};
  return kNames[attribute.index()];
}

void fail_attribute(const Op& op, std::string_view name, std::string_view wanted, const Attribute* found) {
  if (!found) throw Error(concat(op.name, " has no attribute ", quote(name)), {concat("it must be of kind ", wanted)});
  throw Error(concat("attribute ", quote(name), " of ", op.name, " is ", text_of(*found), ", of kind ", kind_name(*found)),
              {concat("it must be of kind ", wanted)});
}

bool is_mark(std::string_view name) {
  return name == "stage" || name == "phase" || name == "origin" || name == "sequence";
}

bool is_countable(const TensorType& type) {
  std::int64_t product = byte_size(type.dtype);
  for (std::int64_t size : type.shape) {
    if (size < 0) return false;
    // A size of zero is left out of the product: it would hide that the others overflow.
    if (size > 0 && __builtin_mul_overflow(product, size, &product)) return false;
  }
  return true;
}

}  // namespace penstock
