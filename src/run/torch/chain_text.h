// SPDX-License-Identifier: Apache-2.0
// The text of a chain's kernel, in the dialect of cuda/prelude.cuh with cuda/chain.cuh.
#pragma once

#include <string>

#include "torch/chain.h"

namespace penstock {

inline constexpr const char* kChainName = "chain";  // the kernel's

// Equal chains have equal texts. The kernel takes where each node with a place lies, in their order, and then how many elements there are,
// or how many rows. A value is computed wherever it is needed, from operands, sums of rows aside: those need a loop over the row, by all
// threads of its block, for all that do not depend on each other. Results are written in the last loop.
std::string chain_text(const Chain& chain);

}  // namespace penstock
