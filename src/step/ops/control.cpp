// SPDX-License-Identifier: Apache-2.0
#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The type of a split operand as one micro-batch sees it.
TensorType part(const Op& op, Types operands, std::size_t index, std::int64_t microbatches) {
  TensorType type = operands[index];
  require(!type.shape.empty(), op, operands, "a scalar cannot be split into micro-batches");
  if (type.shape[0] % microbatches != 0)
    fail(op, operands,
         concat("operand ", index, " has ", type.shape[0], " rows, which do not divide into ", microbatches, " micro-batches"));
  type.shape[0] /= microbatches;
  return type;
}

// The first `split` operands are cut along dim 0, the others are the same in every round. Results are summed over the rounds.
std::vector<TensorType> infer_accumulate(const Op& op, Types operands) {
  invariant(op.body && op.body->inputs.size() == operands.size(), "a loop's structure is verified before its types");
  const Graph& body = *op.body;
  const std::int64_t microbatches = attribute<std::int64_t>(op, "microbatches"), split = attribute<std::int64_t>(op, "split");
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const TensorType wanted = static_cast<std::int64_t>(i) < split ? part(op, operands, i, microbatches) : operands[i];
    const TensorType& found = body.type(body.inputs[i]);
    if (wanted != found) fail(op, operands, concat("input ", i, " of the body is ", found.text(), ", not ", wanted.text()));
  }
  std::vector<TensorType> results;
  for (ValueId output : body.outputs) {
    results.push_back(body.type(output));
    require(results.back().dtype != DType::boolean, op, operands, "results are sums: they cannot be bool");
  }
  return results;
}

std::vector<TensorType> infer_identity(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return {operands[0]};
}

Tensors identity_vjp(const VjpArguments& a) {
  return {a.cotangents[0]};
}

Tensors no_cotangent(const VjpArguments&) {
  return {{}};
}

std::vector<TensorType> infer_constrain(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const Shape& shape = operands[0].shape;
  const std::vector<std::string> names = constrained_dims(op);
  if (names.size() != shape.size())
    fail(op, operands, concat(counted(std::ssize(names), "name"), " for ", counted(std::ssize(shape), "dim")));
  return {operands[0]};
}

Tensors constrain_vjp(const VjpArguments& a) {
  return {constrain(a.cotangents[0], constrained_dims(a.op), attribute_or(a.op, "causal", true))};
}

}  // namespace

std::vector<std::string> constrained_dims(const Op& constrain) {
  return split(attribute<std::string>(constrain, "dims"), ',');
}

std::span<const OpDefinition> control_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "accumulate", .infer = infer_accumulate},
      {.name = "constrain", .infer = infer_constrain, .vjp = constrain_vjp, .views = 0, .layout = all_dims, .linear = Linearity::all},
      {.name = "detach", .infer = infer_identity, .vjp = no_cotangent, .views = 0, .layout = all_dims, .linear = Linearity::all},
      {.name = "stage_boundary", .infer = infer_identity, .vjp = identity_vjp, .views = 0, .layout = all_dims, .linear = Linearity::all},
  };
  return all;
}

Tensor detach(Tensor x) {
  return emit("detach", {x});
}

Tensor stage_boundary(Tensor x) {
  return emit("stage_boundary", {x});
}

Tensor constrain(Tensor x, const std::vector<std::string>& names, bool causal) {
  for (const std::string& name : names)
    if (name.find(',') != std::string::npos) throw Error(concat("constrain: the name ", quote(name), " of a dim has a comma"));
  if (static_cast<int>(names.size()) != x.rank())
    throw Error(concat("constrain: ", counted(std::ssize(names), "name"), " for ", counted(x.rank(), "dim"), " of ", x.type().text()),
                {concat("the names: {", join(names, ", ", quote), "}")}, "give one name for each dim, \"\" for a dim without one");
  if (names.empty()) return x;  // a scalar lies whole
  Attributes attributes = {{"dims", join(names, ",")}};
  if (!causal) attributes["causal"] = false;
  return emit("constrain", {x}, std::move(attributes));
}

std::vector<Tensor> own_op(std::string_view name, const std::vector<Tensor>& operands, Attributes attributes) {
  return emit_all(name, operands, std::move(attributes));
}

std::vector<Tensor> call(std::string_view name, const std::vector<Tensor>& operands, const std::vector<TensorType>& types) {
  return call(name, operands, types, {});
}

std::vector<Tensor> call(std::string_view name, const std::vector<Tensor>& operands, const std::vector<TensorType>& types,
                         Attributes attributes, Vjp vjp) {
  if (find_op(name)) throw Error(concat("call: ", quote(name), " is an op that Penstock knows"), {}, "use the function of that name");
  std::vector<Tensor> results = emit_typed(name, operands, types, std::move(attributes));
  if (vjp && !results.empty()) {
    Builder& builder = *results[0].builder();
    builder.vjps[ValueId(results[0].value())] = std::move(vjp);
  }
  return results;
}

}  // namespace penstock
