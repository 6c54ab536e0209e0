// What follows from an optimiser's op: a prediction, and the join of an update that was made before its clipping norm was known with the op
// that validates it.
#pragma once

#include <optional>

#include "penstock/graph.h"

namespace penstock {

// The op that predicts the parameter `ahead` updates later, on the update's own operands: W - ahead * rate * u, where u is the velocity, or
// mhat / (sqrt(vhat) + eps), and 0 ahead of the first update (SpecTrain, 1809.02839; XPipe, 1911.04610). It has no result yet. None: the
// update has no such rule.
std::optional<Op> prediction_of(const Op& update, std::int64_t ahead);

// Whether `validated` is an adamw_validated that reads all results of `ahead`, an adamw_ahead.
bool validates(const Op& validated, const Op& ahead);

// Two ops that give the same bits as such a pair: `scale` multiplies the gradient by the factor, and `update` is the adamw of the result.
struct ScaledUpdate {
  Op scale, update;
};
ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled);

}  // namespace penstock
