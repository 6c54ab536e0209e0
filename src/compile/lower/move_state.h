// SPDX-License-Identifier: Apache-2.0
// A move of state is a program: what one program leaves on its devices becomes what another one wants, with other stages, other shares or
// another number of devices. It is verified as any program is: the parts that are made are compared, element by element, with those that
// they are made of (program/moved_symbols.h).
#pragma once

#include <string>
#include <vector>

#include "penstock/program.h"

namespace penstock {

// A part that a device holds: a state or a piece of one, by its name (program/piece.h).
struct HeldPiece {
  std::string name;
  TensorType type;
  SlotClass kind = SlotClass::state;  // state or copy: a source is as good as the other
};

// By device, what it holds behind a step of the program.
std::vector<std::vector<HeldPiece>> held_by(const Program& program);

// Returns a program for held.size() devices, or for as many as are wanted where these are more, that makes on each device what `wanted` has
// there of states and copies and the device does not hold. Devices have one numbering: one that is new holds nothing, one that leaves is
// behind those of `wanted`. A part of the same name is not touched. An element comes from the device itself if it is there, else from one
// of those that have sent the fewest bytes, and only once. Nothing has to be moved: a program without devices.
// Throws Error, naming tensor and elements, for what nobody holds, and for parts of another dtype or size.
Program move_state(const std::vector<std::vector<HeldPiece>>& held, const Program& wanted);

}  // namespace penstock
