#include "program/state_parts.h"

#include <utility>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock::checks {
namespace {

StatePart part_of(const Program& program, std::size_t device, std::size_t number, std::size_t index) {
  const Slot& slot = program.devices[device].slots[number];
  StatePart part{device, number, index, &slot.names[index], &slot.parts[index], {}};
  try {
    part.piece = parse_piece(*part.name);
  } catch (const Error& error) {
    throw Error(concat(place(program, part), ": ", error.what()));
  }
  const std::int64_t elements = part.piece.end - part.piece.begin;
  if (!part.piece.whole() && part.type->shape != Shape{elements})
    throw Error(
        concat(place(program, part), " does not fit state ", quote(*part.name)),
        {concat("its part ", index, " is ", part.type->text(), "; the piece is ", TensorType{part.type->dtype, {elements}}.text())});
  return part;
}

}  // namespace

std::string place(const Program& program, const StatePart& part) {
  return concat("device ", part.device, ": slot %", program.devices[part.device].slots[part.slot].name);
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
