// SPDX-License-Identifier: Apache-2.0
// The seconds that moving bytes between devices takes.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "penstock/program.h"

namespace penstock {

// One direction between two devices. A transfer occupies it for bytes / bandwidth, one after the other in the order they are started, and
// arrives `latency` later.
struct Link {
  double latency = 0;                                          // seconds (or the costs' own unit)
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes per second
  double start_seconds = 0;                                    // each end's thread is kept so long by starting a transfer
  double send_seconds_per_byte = 0;                            // and the sender's so much longer for each byte
  // Threads of one process: the end that comes second copies the bytes itself, at `bandwidth`; there is no link to occupy.
  bool second_end_copies = false;
  double wake_seconds = 0;   // that end's thread is kept so much longer where the other device already waits for the transfer
  std::int32_t medium = -1;  // links of one medium carry one transfer at a time, in the order of their starts; -1: a medium of its own
};

// The links of a cluster, as a prediction or a search of tables takes them.
struct Network {
  Link link{};                                                      // between any two devices,
  std::map<std::pair<std::int32_t, std::int32_t>, Link> between{};  // except these (from, to)
  // Between each device and its host, both directions in turn: latency and bandwidth only. Unlimited where the device's own thread copies,
  // which is then in the copies' durations.
  Link host{};
  // Where a kind of collective was measured by itself: the steps of its ring over this link (latency, bandwidth, start_seconds of each
  // member) instead of those between the members.
  std::map<Opcode, Link> collectives{};

  const Link& at(std::int32_t from, std::int32_t to) const;  // `between` these devices, else `link`
};

// Returns how often each member passes on its part of what the others do not have yet: all_reduce 2(n-1) times, the others n-1.
double ring_steps(Opcode opcode, std::size_t members);

// Seconds that a collective takes once all members have started it; `bytes`: the whole of what each member gathers, reduces or exchanges.
// A ring over the slowest link between neighbours in the group, whose n-1 steps (all_reduce: 2(n-1)) each move bytes/n; for all_reduce and
// broadcast also a tree of ceil(log2 n) steps (all_reduce: twice), each of all bytes, where that is faster (Thakur, Rabenseifner, Gropp:
// Optimization of collective communication operations in MPICH, 2005).
double collective_seconds(Opcode opcode, double bytes, const std::vector<std::int32_t>& members, const Network& network);

}  // namespace penstock
