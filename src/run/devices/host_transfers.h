// SPDX-License-Identifier: Apache-2.0
// Which ends of transfers lie in the host's memory: those of snapshots.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>

#include "penstock/program.h"

namespace penstock {

// Opcode, peer and tag, as a transport knows a transfer by.
using HostTransfers = std::set<std::tuple<Opcode, std::int32_t, std::int32_t>>;

// Finds those of a device whose memory is planned.
inline HostTransfers host_transfers(const DeviceProgram& device) {
  HostTransfers out;
  if (device.snapshot_bytes == 0) return out;
  for (const Instruction& i : device.instructions)
    if ((i.opcode == Opcode::send || i.opcode == Opcode::recv) && is_on_host(device.slots[i.slot].kind))
      out.emplace(i.opcode, i.peer, i.tag);
  return out;
}

}  // namespace penstock
