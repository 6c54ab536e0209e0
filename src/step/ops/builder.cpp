// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"

#include "base/text.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool encloses(const Builder* outer, const Builder* inner) {
  while (inner && inner != outer) inner = inner->parent;
  return inner == outer;
}

// The innermost graph that the operands belong to.
Builder& innermost(std::string_view name, std::span<const Tensor> operands) {
  Builder* found = nullptr;
  for (const Tensor& operand : operands) {
    if (!operand) throw Error(concat(name, ": operand ", &operand - operands.data(), " is no tensor"));
    if (!found || encloses(found, operand.builder())) found = operand.builder();
  }
  if (!found) throw Error(concat(name, ": takes at least one operand"));
  return *found;
}

std::vector<ValueId> values_in(Builder& builder, std::span<const Tensor> operands) {
  std::vector<ValueId> values;
  values.reserve(operands.size());
  for (const Tensor& operand : operands) values.emplace_back(capture(builder, operand).value());
  return values;
}

std::vector<Tensor> tensors(Builder& builder, const std::vector<ValueId>& values) {
  std::vector<Tensor> out;
  for (ValueId value : values) out.emplace_back(&builder, value.value);
  return out;
}

[[noreturn]] void unknown_op(std::string_view name) {
  std::vector<std::string> names;
  for (std::string_view known : op_names()) names.emplace_back(known);
  const std::string near = nearest(name, names);
  throw Error(concat("unknown op ", quote(name)), {},
              near.empty() ? "call() takes ops of the dispatcher with their result types" : concat("did you mean ", quote(near), "?"));
}

}  // namespace

TensorType Tensor::type() const {
  if (!builder_) throw Error("an empty tensor has no type");
  return builder_->graph.type(ValueId(value_));
}

std::int64_t Tensor::size(int dim) const {
  const std::int64_t wrapped = wrap(dim, rank());
  if (wrapped < 0 || wrapped >= rank()) throw Error(concat("size: dim ", dim, " is outside ", type().text()));
  return shape()[wrapped];
}

Builder& Builder::outermost() {
  Builder* out = this;
  while (out->parent) out = out->parent;
  return *out;
}

void Builder::mark(Op& op) {
  op.stage = marks.stage;
  op.origin = marks.origin;
  op.phase = marks.phase;
  op.sequence = marks.sequence;
  if (op.sequence >= 0 || op.phase == Phase::backward) return;
  // A loop's body and the graph around it share one numbering, as both grow while the body is traced.
  op.sequence = outermost().next_sequence++;
}

std::vector<ValueId> Builder::append(std::string_view name, std::vector<ValueId> operands, Attributes attributes) {
  const OpDefinition* definition = find_op(name);
  if (!definition) unknown_op(name);
  Op op;
  op.name = name;
  op.operands = std::move(operands);
  op.attributes = std::move(attributes);
  op.stage = marks.stage;
  op.origin = marks.origin;
  const std::vector<TensorType> types = types_of(graph, op.operands);
  std::vector<TensorType> results = definition->infer(op, types);
  for (const TensorType& result : results) require_shape(op, types, result.shape);
  return append_typed(std::move(op), std::move(results));
}

std::vector<ValueId> Builder::append_typed(Op op, std::vector<TensorType> types) {
  mark(op);
  op.results.clear();
  for (TensorType& type : types) op.results.push_back(graph.add_value(std::move(type)));
  producers_.resize(graph.values.size());
  for (ValueId result : op.results) producers_[result] = OpId(graph.ops.size());
  graph.ops.push_back(std::move(op));
  return graph.ops.back().results;
}

std::string Builder::unused_input_name(const std::string& wanted) {
  for (; named_ < graph.inputs.size(); ++named_) input_names_.insert(graph.values[graph.inputs[named_]].name);
  std::string name = wanted.empty() ? concat("invariant.", graph.inputs.size()) : wanted;
  for (int n = 1; input_names_.contains(name); ++n) name = concat(wanted.empty() ? "invariant" : wanted, ".", n);
  return name;
}

ValueId Builder::invariant_for(ValueId outer) {
  const auto [input, added] = invariants_.try_emplace(outer);
  if (added) {
    const Value& value = parent->graph.values[outer];
    input->second = graph.add_input(value.type, unused_input_name(value.name));
    captured.push_back(outer);
  }
  return input->second;
}

const Op* Builder::producer(ValueId value) const {
  if (value.index() >= producers_.size() || !producers_[value]) return nullptr;
  return &graph.ops[producers_[value]];
}

Tensor capture(Builder& builder, Tensor tensor) {
  if (!tensor) throw Error("an empty tensor has no value");
  if (tensor.builder() == &builder) return tensor;
  if (!encloses(tensor.builder(), &builder))
    throw Error(concat("a tensor of graph ", quote(tensor.builder()->graph.name), " is used in graph ", quote(builder.graph.name)), {},
                "a loop's tensors live in its body: return them as results of the loop");
  return {&builder, builder.invariant_for(ValueId(capture(*builder.parent, tensor).value())).value};
}

std::vector<Tensor> emit_all(std::string_view name, std::span<const Tensor> operands, Attributes attributes) {
  Builder& builder = innermost(name, operands);
  return tensors(builder, builder.append(name, values_in(builder, operands), std::move(attributes)));
}

std::vector<Tensor> emit_typed(std::string_view name, std::span<const Tensor> operands, const std::vector<TensorType>& types,
                               Attributes attributes) {
  Builder& builder = innermost(name, operands);
  Op op;
  op.name = name;
  op.operands = values_in(builder, operands);
  op.attributes = std::move(attributes);
  for (const TensorType& type : types) require_shape(op, {}, type.shape);
  return tensors(builder, builder.append_typed(std::move(op), types));
}

Tensor emit(std::string_view name, std::initializer_list<Tensor> operands, Attributes attributes) {
  return emit_all(name, {operands.begin(), operands.size()}, std::move(attributes))[0];
}

Tensor emit_constant(Builder& builder, std::string_view name, Attributes attributes) {
  return {&builder, builder.append(name, {}, std::move(attributes))[0].value};
}

Attributes with(Attributes attributes, const char* name, Attribute value) {
  attributes[name] = std::move(value);
  return attributes;
}

Tensor sum_to(Tensor x, const Shape& shape) {
  const Shape from = x.shape();
  const std::size_t leading = from.size() - shape.size();
  std::vector<std::int64_t> dims;
  for (std::size_t i = 0; i < from.size(); ++i)
    if (i < leading || (shape[i - leading] == 1 && from[i] != 1)) dims.push_back(static_cast<std::int64_t>(i));
  if (dims.empty()) return x;
  return leading == 0 ? sum(x, dims, true) : reshape(sum(x, dims), shape);
}

}  // namespace penstock
