// SPDX-License-Identifier: Apache-2.0
// Back to a snapshot: a program that writes into the state what it was when the snapshot was taken.
#pragma once

#include <vector>

#include "lower/move_state.h"
#include "penstock/program.h"

namespace penstock {

// By device, the parts that a step of a program of with_snapshot() has kept; none where it keeps no snapshot. Their kind says
// whether the device owns the state (`state`) or keeps the part for another (`copy`).
std::vector<std::vector<HeldPiece>> snapshot_of(const Program& program);

// Returns a program for snapshot.size() devices, each of which has these parts of one snapshot in its host's memory. Every part becomes the
// state of its name on the first device that has it, and on each other that has it and whose program in `wanted` has that state. A move
// (lower/move_state.h) takes it from there to where else it is wanted. Throws Error, naming tensor and elements, where no device has some.
Program restore_state(const std::vector<std::vector<HeldPiece>>& snapshot, const Program& wanted);

}  // namespace penstock
