// Checks whether this machine has room for a program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/machine.h"
#include "penstock/program.h"

namespace penstock {

// The bytes that the program plans for its first `devices` devices, including what they keep in the host's memory.
std::int64_t planned_bytes(const Program& program, std::size_t devices);

// Throws Error with each device's plan where those `devices` need more than `room` beyond the `held` bytes that they have already.
void check_room(const Program& program, std::size_t devices, std::int64_t held, const MemoryRoom& room);

// Throws Error where a device of the program needs more than `limit` bytes, with what takes most of it there: which tensor, and the op that
// makes it.
void check_limit(const Program& program, std::int64_t limit);

}  // namespace penstock
