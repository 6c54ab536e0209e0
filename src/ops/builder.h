// Appends ops to a graph under the current marks (stage, phase, origin, sequence).
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "penstock/ops.h"

namespace penstock {

// The marks that new ops get. Scopes save and restore them.
struct Marks {
  std::string stage;
  std::string origin;
  Phase phase = Phase::forward;
  std::int64_t sequence = -1;  // -1: number new forward ops on
};

class Builder {
 public:
  explicit Builder(std::string name) { graph.name = std::move(name); }
  Builder(const Builder&) = delete;  // tensors point to it

  // Appends the op, with result types as inferred by its definition. Throws Error (types, attributes, unknown op).
  std::vector<ValueId> append(std::string_view name, std::vector<ValueId> operands, Attributes attributes = {});
  // The same for an op without definition, or a loop: result types given, marks taken from the builder.
  std::vector<ValueId> append_typed(Op op, std::vector<TensorType> types);
  // The op that defines a value; null for an input. Valid until the next op is appended.
  const Op* producer(ValueId value) const;

  Graph graph;
  Marks marks;
  // The builder of the enclosing graph while a loop body is traced. Values of it that the body uses become
  // invariant inputs of the body, in order of first use.
  Builder* parent = nullptr;
  std::int64_t next_sequence = 0;  // of the outermost builder only
  // Invariants of a loop body: value of the parent -> input of this graph.
  std::vector<std::pair<ValueId, ValueId>> captured;

 private:
  void mark(Op& op);

  std::vector<OpId> producers_;  // by value, as far as ops have defined any
};

// `tensor` as a value of `builder`: itself, or an invariant input where it belongs to an enclosing graph. Throws Error
// where it is none or belongs to another trace.
Tensor capture(Builder& builder, Tensor tensor);

// Appends an op to the innermost graph of its operands; the others are captured. Throws Error as append() and capture() do.
std::vector<Tensor> emit_all(std::string_view name, std::span<const Tensor> operands, Attributes attributes = {});
// The same for an op without definition.
std::vector<Tensor> emit_typed(std::string_view name, std::span<const Tensor> operands, const std::vector<TensorType>& types);
// The first result.
Tensor emit(std::string_view name, std::initializer_list<Tensor> operands, Attributes attributes = {});
// An op without operands.
Tensor emit_constant(Builder& builder, std::string_view name, Attributes attributes);

// The sum of x over the dims that broadcasting from `shape` made: the gradient of a broadcast.
Tensor sum_to(Tensor x, const Shape& shape);

}  // namespace penstock
