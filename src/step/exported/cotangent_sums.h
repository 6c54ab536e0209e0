// SPDX-License-Identifier: Apache-2.0
// Sums of gradients as one op each, where a joint graph has additions of two.
#pragma once

#include "penstock/graph.h"

namespace penstock {

// A value that is read several times gets several gradients, which a joint graph adds two by two, each addition beside the forward op
// whose gradient came last. A parameter that several stages read would so send the gradient from stage to stage, and maybe back. In the
// result additions of backward values are one add_n each of all that is added; one that is nothing but a result of the graph belongs to no
// op, so that each stage adds its own terms (cut in stage/stages.h). Works on renamed graphs (rename.h).
Graph join_cotangent_sums(const Graph& joint);

}  // namespace penstock
