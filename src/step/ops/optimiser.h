// SPDX-License-Identifier: Apache-2.0
// Properties of an optimiser's op (OpDefinition::update), and an update in two halves: one that is made before it is known by how much
// the gradient must be clipped, and one that validates it (Qi et al., 2401.10241, section 4).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/ops.h"

namespace penstock {

// Whether the op is an optimiser's.
bool is_update(const Op& op);
// Whether the parameter that the op makes depends on nothing that is kept.
bool forgets(const Op& update);
// The op that updates the rows that `indices` names by their gradients alone, and leaves the others as they are; it has no result yet.
// None: the update moves others too, or depends on what is kept.
std::optional<Op> update_of_rows(const Op& update, ValueId indices);
// Why there is none: "by \"adamw\"", "with momentum = 0.9".
std::string moves_rows(const Op& update);
// The operand that names the rows which alone are updated; none: it is no such op.
ValueId indices_of_rows(const Op& update);
// The op that predicts the parameter `ahead` updates later, on the update's own operands: W - ahead * rate * u, where u is the velocity, or
// mhat / (sqrt(vhat) + eps), and 0 ahead of the first update (SpecTrain, 1809.02839; XPipe, 1911.04610). It has no result yet. None: the
// update has no such rule.
std::optional<Op> prediction_of(const Op& update, std::int64_t ahead);

// An optimiser's op on tensors of a trace.
struct UpdateOp {
  std::string name;
  std::vector<Tensor> operands;
  Attributes attributes;
};
// The first half updates with gradient*assumed, a scalar of the parameter's type, f32 or f64: its results, and then the values from before.
std::vector<Tensor> update_ahead(const UpdateOp& op, Tensor assumed);
// The second half gives the first's results where factor == assumed, else the update of the values from before with gradient*factor: in
// both cases the bits of one update with that. In place (results over the first's) the first case does nothing. `ahead`: of the first half.
std::vector<Tensor> update_validated(const UpdateOp& op, const std::vector<Tensor>& ahead, Tensor assumed, Tensor factor);

// Which half an op is.
bool is_update_ahead(const Op& op);
bool is_update_validated(const Op& op);
// The optimiser's op that a half does, as it is on its own: the half's operands but for the last, `factors`, and its values from before.
Op update_in(const Op& half);
// Whether `validated`, a second half, reads all results of `ahead`.
bool validates(const Op& validated, const Op& ahead);
// Two ops that give the same bits as such a pair: `scale` multiplies the gradient by the factor, and `update` is the update with the
// result.
struct ScaledUpdate {
  Op scale, update;
};
ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled);

}  // namespace penstock
