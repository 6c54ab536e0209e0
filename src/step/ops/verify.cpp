#include "ops/verify.h"

#include <algorithm>

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
  const auto types = [&](const std::vector<ValueId>& values) {
    std::vector<TensorType> out;
    out.reserve(values.size());
    for (const ValueId value : values) out.push_back(graph.type(value));
    return out;
  };
  const std::vector<TensorType> operands = types(op.operands);
  const auto where = [&] { return concat("graph @", graph.name, ", op ", position); };
  std::vector<TensorType> inferred;
  try {
    inferred = definition->infer(op, operands);
  } catch (const Error& error) {
    throw Error(concat(where(), ": ", error.what()));
  }
  if (std::ranges::equal(inferred, op.results, {}, {}, [&](ValueId result) -> const TensorType& { return graph.type(result); })) return;
  throw Error(concat(where(), ": ", op.name, " gives ", text_of(inferred), ", not ", text_of(types(op.results))),
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
