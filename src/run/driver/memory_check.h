// SPDX-License-Identifier: Apache-2.0
// Checks whether this machine has room for a program.
#pragma once

#include <cstddef>
#include <cstdint>

#include <optional>

#include "base/machine.h"
#include "penstock/program.h"

namespace penstock {

// The bytes that the program plans for its first `devices` devices: theirs, and those that they keep in the host's memory.
struct PlannedBytes {
  std::int64_t devices = 0, host = 0;
};
PlannedBytes planned_bytes(const Program& program, std::size_t devices);

// The memory left on the host, and on devices that have memory of their own; none: they use the host's.
struct Rooms {
  MemoryRoom host;
  std::optional<MemoryRoom> devices = {};
};
// Throws Error with each device's plan where those `devices` need more than there is room for beyond what is `held` already.
void check_room(const Program& program, std::size_t devices, const PlannedBytes& held, const Rooms& rooms);

// Throws Error where a device of the program needs more than `limit` bytes, with what takes most of it there: which tensor, and the op that
// makes it.
void check_limit(const Program& program, std::int64_t limit);

}  // namespace penstock
