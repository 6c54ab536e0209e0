// SPDX-License-Identifier: Apache-2.0
#include "program/state_parts.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock::checks {
namespace {

// Says why the piece cannot be of this type: "is f32[4]", "has a multiple of 3 elements"; empty: it can be, for some size of the
// tensor.
std::string misfit(const Piece& piece, const TensorType& type) {
  if (piece.whole()) return {};
  const Cut& last = piece.cuts.back();
  const std::int64_t elements = type.elements(), tensor = least_elements(piece, elements);
  if (last.stride == 0) {
    const TensorType needed{type.dtype, {last.size()}};
    return type == needed ? "" : concat("is ", needed.text());
  }
  if (fits(piece, tensor, elements)) return {};
  if (elements % last.size() != 0) return concat("has a multiple of ", counted(last.size(), "element"));
  return concat("has ", counted(elements_of(piece, tensor), "element"));
}

StatePart part_of(const Program& program, std::size_t device, std::size_t number, std::size_t index) {
  const Slot& slot = program.devices[device].slots[number];
  StatePart part{device, number, index, &slot.names[index], &slot.parts[index], {}};
  try {
    part.piece = parse_piece(*part.name);
  } catch (const Error& error) {
    throw Error(concat(place(program, part), ": ", error.what()));
  }
  if (const std::string needed = misfit(part.piece, *part.type); !needed.empty())
    throw Error(concat(place(program, part), " does not fit state ", quote(*part.name)),
                {concat("its part ", index, " is ", part.type->text(), "; the piece ", needed)});
  return part;
}

}  // namespace

std::string place(const Program& program, const StatePart& part) {
  return concat("device ", part.device, ": slot %", program.devices[part.device].slots[part.slot].name);
}

std::vector<SlotId> states_written(const DeviceProgram& device, const Instruction& instruction) {
  std::vector<SlotId> out;
  const auto note = [&](SlotId slot) {
    if (holds_state(device.slots[slot].kind)) out.push_back(slot);
  };
  if (defines_slot(instruction.opcode)) note(instruction.slot);
  if (has_operands(instruction.opcode))
    for (const Result& result : device.results_of(instruction)) note(result.slot);
  return out;
}

std::int64_t whole_elements(const std::vector<StatePart>& parts) {
  std::int64_t elements = 0;
  for (const StatePart& part : parts) elements = std::max(elements, part.elements());
  return elements;
}

StateParts state_parts(const Program& program, SlotClass kind) {
  StateParts parts;
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::size_t s = 0; s < program.devices[d].slots.size(); ++s) {
      const Slot& slot = program.devices[d].slots[s];
      for (std::size_t p = 0; slot.kind == kind && p < slot.parts.size(); ++p) {
        StatePart part = part_of(program, d, s, p);
        parts[part.piece.tensor].push_back(std::move(part));
      }
    }
  return parts;
}

}  // namespace penstock::checks
