// An update made ahead of the norm that it is clipped by, and the op that validates it, as one update.
#pragma once

#include "ir/graph.h"

namespace penstock {

// Whether `validated` is the adamw_validated of all that `ahead`, an adamw_ahead, gives.
bool validates(const Op& validated, const Op& ahead);

// The same bits as of such a pair: `scale` multiplies the gradient by the factor into `scaled`, and `update` is the adamw of that.
struct ScaledUpdate {
  Op scale, update;
};
ScaledUpdate as_one_update(const Op& ahead, const Op& validated, ValueId scaled);

}  // namespace penstock
