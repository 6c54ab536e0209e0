// SPDX-License-Identifier: Apache-2.0
#include "penstock/network.h"

#include <algorithm>
#include <bit>

#include "schedule/ring.h"

namespace penstock {
namespace {

// The longest latency and the smallest bandwidth of the links between neighbours in the group's order.
Link slowest_neighbours(const std::vector<std::int32_t>& members, const Network& network) {
  Link out;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const Link& link = network.at(members[m], members[(m + 1) % members.size()]);
    out.latency = std::max(out.latency, link.latency);
    out.bandwidth = std::min(out.bandwidth, link.bandwidth);
  }
  return out;
}

double ring_seconds(Opcode opcode, double bytes, std::size_t members, const Link& link) {
  return ring_steps(opcode, members) * (link.latency + bytes / static_cast<double>(members) * (1 / link.bandwidth));
}

}  // namespace

double ring_steps(Opcode opcode, std::size_t members) {
  return (opcode == Opcode::all_reduce ? 2 : 1) * (static_cast<double>(members) - 1);
}

double collective_seconds(Opcode opcode, double bytes, const std::vector<std::int32_t>& members, const Network& network) {
  if (const auto measured = network.collectives.find(opcode); measured != network.collectives.end())
    return ring_seconds(opcode, bytes, members.size(), measured->second);
  return collective_seconds(opcode, bytes, members.size(), slowest_neighbours(members, network));
}

double collective_seconds(Opcode opcode, double bytes, std::size_t members, const Link& slowest) {
  const double ring = ring_seconds(opcode, bytes, members, slowest), rounds = opcode == Opcode::all_reduce ? 2 : 1;
  if (opcode != Opcode::all_reduce && opcode != Opcode::broadcast) return ring;
  const auto depth = static_cast<double>(std::bit_width(members - 1));  // of a binary tree
  return std::min(ring, rounds * depth * (slowest.latency + bytes * (1 / slowest.bandwidth)));
}

const Link& Network::at(std::int32_t from, std::int32_t to) const {
  const auto it = between.find({from, to});
  return it == between.end() ? link : it->second;
}

}  // namespace penstock
