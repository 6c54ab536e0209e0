// SPDX-License-Identifier: Apache-2.0
// The meaning of one op: result types, gradient, cost, aliasing; and how a user makes an op known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"
#include "penstock/ops.h"

namespace penstock {

// An op's gradient is made of this.
struct VjpArguments {
  const Op& op;                        // in the graph that is differentiated
  std::span<const Tensor> operands;    // of the forward op
  std::span<const Tensor> results;     // of the forward op
  std::span<const Tensor> cotangents;  // one per result; none where nothing flows back
  const std::vector<bool>& wanted;     // operands whose cotangent is asked for
};

// Gives the cotangent of each operand, none where it is not wanted or zero, as ops that it traces.
using Vjp = std::function<std::vector<Tensor>(const VjpArguments&)>;

// A tensor in the host's memory as a kernel of a user's own sees it: dense, row-major.
struct TensorMemory {
  std::byte* data = nullptr;  // its first element; type.bytes() bytes that the caller owns
  TensorType type;            // static, as in the graph
  // Returns the elements as T, which must be the C++ type of the dtype: nothing checks it.
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};
// Which ops of a name map a sum of operands, of all their operands, to the sum of the results: those can be done on the terms of a sum.
enum class Linearity : std::uint8_t {
  none,
  all,
  of_tensors,  // without the number "other": x + y, not x + 1
  of_number,   // only with it: 2 x, not x y
};
// Computes an op: reads the operands, writes every result. Called by several devices' threads at once.
using OpFunction = void (*)(const Op& op, std::span<const TensorMemory> operands, std::span<const TensorMemory> results);

// Properties of an optimiser's op that its results do not show. Its operands are the parameter, the gradient, what is kept of it, and
// scalars from the learning rate on; its results are the parameter and what is kept.
struct UpdateRules {
  // The attribute that weighs what is kept: where it is 0, no parameter depends on that. "": one always does.
  std::string_view momentum = {};
  int scalars = 1;  // operands behind what is kept
  // Where "weight_decay" is 0 too, the op that does the same to some rows: (parameter, the rows' gradients, i64 indices, learning rate) ->
  // (parameter). Rows that have no gradient stay as they are, bit by bit. "": there is none.
  std::string_view by_rows = {};
  // The operand that says which rows such an op updates; -1: it updates all.
  int indices = -1;
  // The op that predicts the parameter so many updates later, on the update's own operands. It has no result yet.
  Op (*predict)(const Op& update, std::int64_t ahead) = nullptr;
};

// All that is known of an op by its name: one entry of the registry, Penstock's or a user's (register_op).
struct OpDefinition {
  std::string_view name;  // as Op::name; a user's has a prefix, and its text must outlive the process's graphs
  // Infers the result types; throws Error with the op's name and the shapes. `op` gives the number of operands and the attributes.
  std::vector<TensorType> (*infer)(const Op& op, std::span<const TensorType> operands);
  // Gives the cotangent of each operand (none where it is not wanted or zero); null: not differentiable in any operand.
  std::vector<Tensor> (*vjp)(const VjpArguments&) = nullptr;
  // Floating-point operations of one execution; null: one per result element.
  double (*flops)(const Op& op, std::span<const TensorType> operands, std::span<const TensorType> results) = nullptr;
  // Bytes moved; null: every operand read once and every result written once.
  double (*bytes)(const Op& op, std::span<const TensorType> operands, std::span<const TensorType> results) = nullptr;
  // The operand whose storage every result views (never written through): reshape, transpose, split, ...; -1: fresh storage. A reshape
  // copies where the operand's strides do not allow a view.
  int views = -1;
  // Whether element e of every result depends on element e only of the operands of the result's type. Then a result may be written over
  // such an operand's storage (add, gelu, adamw, ...).
  bool elementwise = false;
  // Whether result i is a later version of operand i. Then it is written over a state where operand i was (update_validated).
  bool revises = false;
  // Whether the result of a member of a mesh axis depends on the other members, or on which member it is. No device runs such an op alone.
  bool collective = false;
  // Says what the members of an axis can compute of it on parts of its operands; null: it needs them whole.
  LayoutRule layout = nullptr;
  // The same where the split of a result asks for it (`operand` is the result's number): for ops whose operands' shapes do not say as much,
  // and for those whose operands are to be split because their result is.
  LayoutRule layout_result = nullptr;
  // Changes the whole op into a member's; null: they differ in nothing but their operands.
  LocalRule local = nullptr;
  // Ask is_linear(op) of ops/layouts.h.
  Linearity linear = Linearity::none;
  // The rules of an optimiser's op; null: the op is not an optimiser's.
  const UpdateRules* update = nullptr;
  // Computes a user's own op; null: the executors have a kernel of this name.
  OpFunction compute = nullptr;
};

// Makes a user's own op known for as long as the process runs, under a name with the user's prefix ("mine::swish"). Ops are what graphs of
// all threads mean by a name, so they are the process's, not one call's. Throws Error: the name is known, "infer" or "compute" is missing,
// or it is a view.
void register_op(const OpDefinition& definition);
// The op's results on these operands, by its `infer`. Throws Error for a name that nobody registered, and what `infer` throws.
std::vector<Tensor> own_op(std::string_view name, const std::vector<Tensor>& operands, Attributes attributes = {});

// The results of an op that Penstock does not know, by its name in libtorch's dispatcher ("aten::special_i0", "mine::op"), and of the types
// given. Operands are the tensors of its schema, in order, and attributes its other arguments, by name; defaults may be left out. Of
// tensors that the schema has as optional, "none" lists the places of those that are absent, and "lists" has the lengths of lists of
// tensors. With a `vjp` it is differentiable; it counts no flops, and members of a mesh axis compute it whole. Throws Error for a name that
// Penstock knows; where it runs, for one that the dispatcher does not know, and for results of other types.
std::vector<Tensor> call(std::string_view name, const std::vector<Tensor>& operands, const std::vector<TensorType>& types,
                         Attributes attributes, Vjp vjp = {});

}  // namespace penstock
