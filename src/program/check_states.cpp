// Checks who owns which state, whole or in pieces, and who copies it.
#include <algorithm>
#include <set>
#include <string_view>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/state_parts.h"

namespace penstock::checks {
namespace {

using Parts = std::vector<StatePart>;  // the parts of one tensor

// A device may hold each state by one name only once.
void check_names(std::size_t number, const DeviceProgram& device) {
  std::set<std::string_view> names;
  for (const Slot& slot : device.slots)
    for (const std::string& name : slot.names)
      if (!names.insert(name).second)
        throw Error(concat("device ", number, ": slot %", slot.name, " holds state ", quote(name), " once more"), {},
                    "a device holds a state once: read it from there");
}

// Sorts the owners of a tensor by where they begin. Each element must have one owner, and all owners one dtype.
void check_owners(const Program& program, const std::string& tensor, Parts& owners) {
  std::ranges::stable_sort(owners, {}, [](const StatePart& part) { return part.piece.begin; });
  if (const Piece& first = owners.front().piece; first.begin > 0)
    throw Error(concat("state ", quote(tensor), ": nobody owns its elements [0:", first.begin, "]"));
  for (std::size_t i = 1; i < owners.size(); ++i) {
    const StatePart &before = owners[i - 1], &part = owners[i];
    if (before.piece.whole() || part.piece.whole() || part.piece.begin < before.piece.end)
      throw Error(concat("state ", quote(tensor), " has two owners"),
                  {concat("device ", before.device, " has ", *before.name, ", device ", part.device, " has ", *part.name, " (slot %",
                          program.devices[part.device].slots[part.slot].name, ")")},
                  "make all but one of them a copy");
    if (part.piece.begin > before.piece.end)
      throw Error(concat("state ", quote(tensor), ": nobody owns its elements [", before.piece.end, ":", part.piece.begin, "]"));
    if (part.type->dtype != before.type->dtype)
      throw Error(concat("state ", quote(tensor), " has pieces of two dtypes"),
                  {concat(*before.name, " is of ", name(before.type->dtype), ", ", *part.name, " of ", name(part.type->dtype))});
  }
}

// Whether the copy is of what the owners hold. `owners` are sorted as check_owners() leaves them.
bool fits(const StatePart& copy, const Parts& owners) {
  const StatePart &first = owners.front(), &last = owners.back();
  if (copy.piece.whole() && first.piece.whole()) return *copy.type == *first.type;
  const bool inside = copy.piece.whole() ? copy.end() == last.end() : copy.end() <= last.end();
  return inside && copy.type->dtype == first.type->dtype;
}

void check_copy(const Program& program, const StatePart& copy, const Parts& owners) {
  if (fits(copy, owners)) return;
  const StatePart &first = owners.front(), &last = owners.back();
  std::string owned = concat("its owner on device ", first.device, " has ", first.type->text());
  if (!first.piece.whole()) owned = concat("its owners have ", last.end(), " elements of ", name(first.type->dtype));
  throw Error(concat(place(program, copy), " is no copy of state ", quote(*copy.name)),
              {concat("the copy is ", copy.type->text(), ", ", owned)});
}

}  // namespace

void check_states(const Program& program) {
  for (std::size_t d = 0; d < program.devices.size(); ++d) check_names(d, program.devices[d]);
  StateParts owners = state_parts(program, SlotClass::state);
  for (auto& [tensor, parts] : owners) check_owners(program, tensor, parts);
  for (const auto& [tensor, copies] : state_parts(program, SlotClass::copy)) {
    const auto owned = owners.find(tensor);
    if (owned == owners.end())
      throw Error(concat(place(program, copies.front()), " copies state ", quote(tensor), ", which nobody owns"), {},
                  "a checkpoint would not have it: make one of its copies a state");
    for (const StatePart& copy : copies) check_copy(program, copy, owned->second);
  }
}

}  // namespace penstock::checks
