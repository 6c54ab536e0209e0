// SPDX-License-Identifier: Apache-2.0
// The parts of a program's slots that hold state, grouped by tensor.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "penstock/program.h"
#include "program/piece.h"

namespace penstock::checks {

struct StatePart {
  std::size_t device = 0, slot = 0, index = 0;  // index: of the part in the slot
  const std::string* name = nullptr;            // the state's name, which `piece` is read from
  const TensorType* type = nullptr;
  Piece piece;

  // The fewest elements that the tensor can have.
  std::int64_t elements() const { return least_elements(piece, type->elements()); }
};
using StateParts = std::map<std::string, std::vector<StatePart>>;  // by tensor's name, in the order of the devices

// Where a part is, for messages: "device 1: slot %w".
std::string place(const Program& program, const StatePart& part);
// The state parts of the slots of one class; they refer to the program. Throws Error where a name is no piece's, or the type not the
// piece's.
StateParts state_parts(const Program& program, SlotClass kind);
// The slots of state that the instruction writes.
std::vector<SlotId> states_written(const DeviceProgram& device, const Instruction& instruction);
// Returns the number of elements of the tensor of which these are all parts.
std::int64_t whole_elements(const std::vector<StatePart>& parts);

}  // namespace penstock::checks
