// SPDX-License-Identifier: Apache-2.0
// The meaning of one op: result types, gradient, cost, aliasing. One table per family (one file each), looked up by name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/op.h"

namespace penstock {

// The definition of an op; null for one that Penstock does not know (legal: its types are given, it runs by name).
const OpDefinition* find_op(std::string_view name);
// Every op of Penstock's, by name (tests walk it).
std::vector<std::string_view> op_names();

// The families of ops. Each function returns a static table.
std::span<const OpDefinition> elementwise_ops();
std::span<const OpDefinition> activation_ops();
std::span<const OpDefinition> reduction_ops();
std::span<const OpDefinition> shape_ops();
std::span<const OpDefinition> product_ops();
std::span<const OpDefinition> convolution_ops();
std::span<const OpDefinition> resampling_ops();
std::span<const OpDefinition> normalisation_ops();
std::span<const OpDefinition> attention_ops();
std::span<const OpDefinition> embedding_ops();
std::span<const OpDefinition> indexing_ops();
std::span<const OpDefinition> loss_ops();
std::span<const OpDefinition> random_ops();
std::span<const OpDefinition> optimiser_ops();
std::span<const OpDefinition> collective_ops();
std::span<const OpDefinition> control_ops();  // accumulate, constrain, stage_boundary

// Whether every result of the op views its one operand's storage.
bool is_view(const Op& op);
// Whether the members of a mesh axis do the op together, or differ by it (OpDefinition::collective).
bool is_collective(const Op& op);

// The names that a constrain op gives to the dims of its operand; "" for a dim without one.
std::vector<std::string> constrained_dims(const Op& constrain);

// Whether devices can sum this dtype with one another.
constexpr bool can_be_summed(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::i32 || dtype == DType::i64;
}

// Flops and bytes (operands read + results written) of one op, as a roofline counts them. Unknown ops: flops 0.
struct OpCost {
  double flops = 0, bytes = 0;
};
OpCost cost(const Graph& graph, const Op& op);

}  // namespace penstock
