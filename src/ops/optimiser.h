// Joins an update that was made before its clipping norm was known, and the op that validates it, into one update.
#pragma once

#include "penstock/graph.h"

namespace penstock {

// Whether `validated` is an adamw_validated that reads all results of `ahead`, an adamw_ahead.
bool validates(const Op& validated, const Op& ahead);

// Two ops that give the same bits as such a pair: `scale` multiplies the gradient by the factor, and `update` is the adamw of the result.
struct ScaledUpdate {
  Op scale, update;
};
ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled);

}  // namespace penstock
