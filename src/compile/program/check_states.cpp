// SPDX-License-Identifier: Apache-2.0
// Checks who owns which state, whole or in pieces, and who copies it.
#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/snapshot_name.h"
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

[[noreturn]] void fail_twice(const Program& program, const StatePart& before, const StatePart& part) {
  throw Error(concat("state ", quote(part.piece.tensor), " has two owners"),
              {concat("device ", before.device, " has ", *before.name, ", device ", part.device, " has ", *part.name, " (slot %",
                      program.devices[part.device].slots[part.slot].name, ")")},
              "make all but one of them a copy");
}

// Each element must have one owner.
void check_tiling(const Program& program, const std::string& tensor, const Parts& owners, std::int64_t elements) {
  std::vector<Piece> pieces;
  for (const StatePart& part : owners) pieces.push_back(part.piece);
  if (const std::optional<Misfit> wrong = find_misfit(pieces, elements)) {
    if (wrong->before != wrong->piece) fail_twice(program, owners[wrong->before], owners[wrong->piece]);
    throw Error(concat("state ", quote(tensor), ": nobody owns its elements ", piece_name("", wrong->begin, wrong->end)));
  }
  if (elements == 0 && owners.size() > 1) fail_twice(program, owners[0], owners[1]);
}

// Sorts the owners of a tensor by where they begin, for messages. All owners must have one dtype, and all their pieces be of one tensor.
void check_owners(const Program& program, const std::string& tensor, Parts& owners) {
  const std::int64_t elements = whole_elements(owners);
  std::ranges::stable_sort(owners, {}, [&](const StatePart& part) { return run_from(part.piece, elements, 0).begin; });
  for (const StatePart& part : owners)
    if (part.piece.is_strided() && !fits(part.piece, elements, part.type->elements()))
      throw Error(concat(place(program, part), " does not fit state ", quote(*part.name)),
                  {concat("its part ", part.index, " is ", part.type->text(), "; its owners have ", elements, " elements")});
  check_tiling(program, tensor, owners, elements);
  for (std::size_t i = 1; i < owners.size(); ++i) {
    const StatePart &before = owners[i - 1], &part = owners[i];
    if (part.type->dtype != before.type->dtype)
      throw Error(concat("state ", quote(tensor), " has pieces of two dtypes"),
                  {concat(*before.name, " is of ", name(before.type->dtype), ", ", *part.name, " of ", name(part.type->dtype))});
  }
}

// Whether the copy is of what the owners hold.
bool is_copy(const StatePart& copy, const Parts& owners) {
  const StatePart& first = owners.front();
  if (copy.piece.whole() && first.piece.whole()) return *copy.type == *first.type;
  return fits(copy.piece, whole_elements(owners), copy.type->elements()) && copy.type->dtype == first.type->dtype;
}

void check_copy(const Program& program, const StatePart& copy, const Parts& owners) {
  if (is_copy(copy, owners)) return;
  const StatePart& first = owners.front();
  std::string owned = concat("its owner on device ", first.device, " has ", first.type->text());
  if (!first.piece.whole()) owned = concat("its owners have ", whole_elements(owners), " elements of ", name(first.type->dtype));
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
  for (const auto& [tensor, parts] : state_parts(program, SlotClass::snapshot))
    if (!parse_snapshot_name(tensor))
      throw Error(concat(place(program, parts.front()), ": ", quote(*parts.front().name), " is no snapshot's name"), {},
                  concat("the first one's would be ", snapshot_name(0, *parts.front().name)));
}

}  // namespace penstock::checks
