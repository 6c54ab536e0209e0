// SPDX-License-Identifier: Apache-2.0
#include "ops/verify.h"

#include "base/text.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::string text_of(Types types) {
  return concat("(", join(types, ", ", [](const TensorType& type) { return type.text(); }), ")");
}

void verify_op(const Graph& graph, const Op& op, std::size_t position) {
  const OpDefinition* definition = find_op(op.name);
  if (!definition) return;
  const std::vector<TensorType> operands = types_of(graph, op.operands), results = types_of(graph, op.results);
  const auto where = [&] { return concat("graph @", graph.name, ", op ", position); };
  std::vector<TensorType> inferred;
  try {
    inferred = definition->infer(op, operands);
  } catch (const Error& error) {
    throw Error(concat(where(), ": ", error.what()));
  }
  if (inferred == results) return;
  throw Error(concat(where(), ": ", op.name, " gives ", text_of(inferred), ", not ", text_of(results)),
              {concat("operands: ", text_of(operands))});
}

}  // namespace

void verify(const Graph& graph) {
  verify_structure(graph);
  Op place;
  place.name = concat("graph @", graph.name);
  for (const Value& value : graph.values) require_shape(place, {}, value.type.shape);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].body) verify(*graph.ops[i].body);
    verify_op(graph, graph.ops[i], i);
  }
}

}  // namespace penstock
