// Who owns which state, whole or in pieces, and who copies it.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/piece.h"

namespace penstock::checks {
namespace {

// A part of a slot that holds state.
struct Part {
  std::size_t device = 0;
  const Slot* slot = nullptr;
  const std::string* name = nullptr;
  const TensorType* type = nullptr;
  Piece piece;

  // Behind its last element, in the flattened tensor.
  std::int64_t end() const { return piece.whole() ? type->elements() : piece.end; }
};
using Parts = std::map<std::string, std::vector<Part>>;  // by tensor, in the order of the devices

std::string place(const Part& part) {
  return concat("device ", part.device, ": slot %", part.slot->name);
}

Part part_of(std::size_t device, const Slot& slot, std::size_t index) {
  Part part{device, &slot, &slot.names[index], &slot.parts[index], {}};
  try {
    part.piece = parse_piece(*part.name);
  } catch (const Error& error) {
    throw Error(concat(place(part), ": ", error.what()));
  }
  const std::int64_t elements = part.piece.end - part.piece.begin;
  if (!part.piece.whole() && part.type->shape != Shape{elements})
    throw Error(
        concat(place(part), " does not fit state ", quote(*part.name)),
        {concat("its part ", index, " is ", part.type->text(), "; the piece is ", TensorType{part.type->dtype, {elements}}.text())});
  return part;
}

Parts parts_of(const Program& program, SlotClass kind) {
  Parts parts;
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (const Slot& slot : program.devices[d].slots)
      for (std::size_t p = 0; slot.kind == kind && p < slot.parts.size(); ++p) {
        Part part = part_of(d, slot, p);
        parts[part.piece.tensor].push_back(std::move(part));
      }
  return parts;
}

// Sorts them. Each element has one owner, and all have one dtype.
void check_owners(const std::string& tensor, std::vector<Part>& owners) {
  std::ranges::stable_sort(owners, {}, [](const Part& part) { return part.piece.begin; });
  if (const Piece& first = owners.front().piece; first.begin > 0)
    throw Error(concat("state ", quote(tensor), ": nobody owns its elements [0:", first.begin, "]"));
  for (std::size_t i = 1; i < owners.size(); ++i) {
    const Part &before = owners[i - 1], &part = owners[i];
    if (before.piece.whole() || part.piece.whole() || part.piece.begin < before.piece.end)
      throw Error(concat("state ", quote(tensor), " has two owners"),
                  {concat("device ", before.device, " has ", *before.name, ", device ", part.device, " has ", *part.name, " (slot %",
                          part.slot->name, ")")},
                  "make all but one of them a copy");
    if (part.piece.begin > before.piece.end)
      throw Error(concat("state ", quote(tensor), ": nobody owns its elements [", before.piece.end, ":", part.piece.begin, "]"));
    if (part.type->dtype != before.type->dtype)
      throw Error(concat("state ", quote(tensor), " has pieces of two dtypes"),
                  {concat(*before.name, " is of ", name(before.type->dtype), ", ", *part.name, " of ", name(part.type->dtype))});
  }
}

// `owners` as check_owners() leaves them.
bool fits(const Part& copy, const std::vector<Part>& owners) {
  const Part &first = owners.front(), &last = owners.back();
  if (copy.piece.whole() && first.piece.whole()) return *copy.type == *first.type;
  const bool inside = copy.piece.whole() ? copy.end() == last.end() : copy.end() <= last.end();
  return inside && copy.type->dtype == first.type->dtype;
}

void check_copy(const Part& copy, const std::vector<Part>& owners) {
  if (fits(copy, owners)) return;
  const Part &first = owners.front(), &last = owners.back();
  std::string owned = concat("its owner on device ", first.device, " has ", first.type->text());
  if (!first.piece.whole()) owned = concat("its owners have ", last.end(), " elements of ", name(first.type->dtype));
  throw Error(concat(place(copy), " is no copy of state ", quote(*copy.name)), {concat("the copy is ", copy.type->text(), ", ", owned)});
}

}  // namespace

void check_states(const Program& program) {
  Parts owners = parts_of(program, SlotClass::state);
  for (auto& [tensor, parts] : owners) check_owners(tensor, parts);
  for (const auto& [tensor, copies] : parts_of(program, SlotClass::copy))
    if (const auto owned = owners.find(tensor); owned != owners.end())
      for (const Part& copy : copies) check_copy(copy, owned->second);
}

}  // namespace penstock::checks
