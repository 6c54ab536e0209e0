// SPDX-License-Identifier: Apache-2.0
// Appends ops to a graph under the current marks (stage, phase, origin, sequence).
#pragma once

#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "penstock/graph.h"
#include "penstock/op.h"

namespace penstock {

using Tensors = std::vector<Tensor>;

// The marks that new ops get. Scopes save and restore them.
struct Marks {
  std::string stage;
  std::string origin;
  Phase phase = Phase::forward;
  std::int64_t sequence = -1;  // the sequence number of new ops; -1: forward ops are numbered on
};

class Builder {
 public:
  explicit Builder(std::string name) { graph.name = std::move(name); }
  Builder(const Builder&) = delete;  // not copyable, as tensors point to it

  // Appends the op, with result types as inferred by its definition. Throws Error (types, attributes, unknown op).
  std::vector<ValueId> append(std::string_view name, std::vector<ValueId> operands, Attributes attributes = {});
  // The same for an op without definition, or a loop: the result types are given, the marks are the builder's.
  std::vector<ValueId> append_typed(Op op, std::vector<TensorType> types);
  // The op that defines a value; null for an input. The pointer is valid until the next op is appended.
  const Op* producer(ValueId value) const;
  // Returns, in a loop's body, the invariant input that stands for the parent's value. The first use adds it, by its name or one near it.
  ValueId invariant_for(ValueId outer);
  // The builder of the graph around all loops.
  Builder& outermost();

  Graph graph;
  Marks marks;
  // The builder of the enclosing graph while a loop body is traced. Values of that graph that the body uses become invariant inputs of the
  // body, in order of first use.
  Builder* parent = nullptr;
  std::int64_t next_sequence = 0;  // used in the outermost builder only
  // In a loop's body: the values of the parent that its invariant inputs stand for.
  std::vector<ValueId> captured;
  // The gradients that their callers gave to ops without definition, by the op's first result.
  std::map<ValueId, Vjp> vjps;

 private:
  void mark(Op& op);
  std::string unused_input_name(const std::string& wanted);

  IdVector<ValueId, OpId> producers_;                // by value, up to the last value that an op has defined
  std::unordered_map<ValueId, ValueId> invariants_;  // by value of the parent
  std::unordered_set<std::string> input_names_;      // of the first named_ inputs
  std::size_t named_ = 0;
};

// `tensor` as a value of `builder`: itself, or an invariant input where it belongs to an enclosing graph. Throws Error for an absent tensor
// and one of another trace.
Tensor capture(Builder& builder, Tensor tensor);

// Appends an op to the innermost graph of its operands; the others are captured. Throws Error as append() and capture() do.
std::vector<Tensor> emit_all(std::string_view name, std::span<const Tensor> operands, Attributes attributes = {});
// The same for an op without definition.
std::vector<Tensor> emit_typed(std::string_view name, std::span<const Tensor> operands, const std::vector<TensorType>& types,
                               Attributes attributes = {});
// emit_all's first result.
Tensor emit(std::string_view name, std::initializer_list<Tensor> operands, Attributes attributes = {});
// An op without operands.
Tensor emit_constant(Builder& builder, std::string_view name, Attributes attributes);

// The attributes, and this one.
Attributes with(Attributes attributes, const char* name, Attribute value);

// The sum of x over the dims that broadcasting from `shape` made: the gradient of a broadcast.
Tensor sum_to(Tensor x, const Shape& shape);

}  // namespace penstock
