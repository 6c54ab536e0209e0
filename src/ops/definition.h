// What one op means: result types, gradient, cost, aliasing. One table per family (one file each), looked up by name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "penstock/ops.h"

namespace penstock {

struct VjpArguments {
  const Op& op;
  std::span<const Tensor> operands;
  std::span<const Tensor> results;
  std::span<const Tensor> cotangents;  // one per result; none where nothing flows back
  const std::vector<bool>& wanted;     // operands whose cotangent is asked for
};

struct OpDefinition {
  std::string_view name;
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
  // Whether result i is a later version of operand i. Then it is written over a state where operand i was (adamw_validated).
  bool revises = false;
  // Whether the result of a member of a mesh axis depends on the other members, or on which member it is. No device runs such an op alone.
  bool collective = false;
};

// The definition of an op; null for one that Penstock does not know (legal: its types are given, it runs by name).
const OpDefinition* find_op(std::string_view name);
// Every op defined, by name (tests walk it).
std::vector<std::string_view> op_names();

// The families of ops. Each function returns a static table.
std::span<const OpDefinition> elementwise_ops();
std::span<const OpDefinition> activation_ops();
std::span<const OpDefinition> reduction_ops();
std::span<const OpDefinition> shape_ops();
std::span<const OpDefinition> product_ops();
std::span<const OpDefinition> convolution_ops();
std::span<const OpDefinition> normalisation_ops();
std::span<const OpDefinition> attention_ops();
std::span<const OpDefinition> embedding_ops();
std::span<const OpDefinition> loss_ops();
std::span<const OpDefinition> random_ops();
std::span<const OpDefinition> optimiser_ops();
std::span<const OpDefinition> collective_ops();
std::span<const OpDefinition> control_ops();  // accumulate, stage_boundary

// Whether devices can sum this dtype with one another.
constexpr bool can_be_summed(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32 || dtype == DType::i64;
}

// Flops and bytes (operands read + results written) of one op, as a roofline counts them. Unknown ops: flops 0.
struct OpCost {
  double flops = 0, bytes = 0;
};
OpCost cost(const Graph& graph, const Op& op);

}  // namespace penstock
