// The parts of a program's slots that hold state, by the tensor that each is of.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "program/piece.h"
#include "program/program.h"

namespace penstock::checks {

struct StatePart {
  std::size_t device = 0, slot = 0, index = 0;  // index: in the slot
  const std::string* name = nullptr;            // of the state: as the piece
  const TensorType* type = nullptr;
  Piece piece;

  // Behind its last element, in the flattened tensor.
  std::int64_t end() const { return piece.whole() ? type->elements() : piece.end; }
};
using StateParts = std::map<std::string, std::vector<StatePart>>;  // by tensor, in the order of the devices

// "device 1: slot %w"
std::string place(const Program& program, const StatePart& part);
// The parts of the slots of one class. They refer to the program. Throws Error where a name is no piece's, or the type not the piece's.
StateParts state_parts(const Program& program, SlotClass kind);

}  // namespace penstock::checks
