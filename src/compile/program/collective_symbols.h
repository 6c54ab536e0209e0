// SPDX-License-Identifier: Apache-2.0
// Computes in symbols what the members of a collective get.
//
// Transports promise of sums: the bits at a place follow from the members' terms at that place, in the group's order, from the place, and
// from the size of the whole; not from who came first, nor from which devices the members are. So two groups that sum equal terms get
// equal sums. The other collectives move bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/program.h"
#include "program/symbol.h"

namespace penstock::checks {

// A member's slot, and the symbols of its parts; no slot where the member gives or takes nothing.
struct SlotSymbols {
  const Slot* slot = nullptr;
  std::vector<Symbol> parts{};
};

// Fills in the symbols of what the members get. `number` tells the collective from all others of the program, and `root` is the place of
// the member that gives a broadcast.
void share_symbols(Opcode opcode, std::uint64_t number, std::size_t root, std::span<const SlotSymbols> given, std::span<SlotSymbols> taken);

}  // namespace penstock::checks
