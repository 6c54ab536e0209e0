// SPDX-License-Identifier: Apache-2.0
// A program's work has an order on asynchronous devices: the lanes, the waits between them and the transfers keep it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "devices/lanes.h"
#include "penstock/program.h"

namespace penstock::test {

// One of the calls that a device's lanes got in a step, in their order. The n-th `work` is the n-th instruction that is no free.
struct LaneCall {
  enum class Kind : std::uint8_t { work, record, after } kind;
  DeviceLane lane;
  Event event;  // the new one, or that which is waited for
};
using LaneCalls = std::vector<std::vector<LaneCall>>;  // by device

// Two works of one device that touch the same memory, in program order, at least one of them writing.
struct Conflict {
  std::size_t device, first, second;  // works
  bool seen = false;                  // in what one of them reads: it reads what the other wrote, or before the other writes
};
std::vector<Conflict> conflicts(const Program& program);

struct LeftOut {
  std::size_t device, call;  // a LaneCall::Kind::after
};
// The conflicts whose first access need not be over when the second begins, if this wait is left out.
std::vector<Conflict> unordered(const Program& program, const LaneCalls& calls, std::optional<LeftOut> left_out = {});

}  // namespace penstock::test
