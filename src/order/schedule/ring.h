// SPDX-License-Identifier: Apache-2.0
// A ring, or a tree, by its slowest link.
#pragma once

#include <cstddef>

#include "penstock/network.h"

namespace penstock {

// collective_seconds (penstock/network.h) over so many members, of whose links `slowest` is the slowest.
double collective_seconds(Opcode opcode, double bytes, std::size_t members, const Link& slowest);

}  // namespace penstock
