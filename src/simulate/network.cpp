#include "penstock/network.h"

#include <algorithm>
#include <bit>

namespace penstock {
namespace {

// What the slowest of the links between neighbours in the group's order takes for a step.
struct StepCost {
  double latency = 0, seconds_per_byte = 0;
};

StepCost slowest(const std::vector<std::int32_t>& members, const Network& network) {
  StepCost out;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const Link& link = network.at(members[m], members[(m + 1) % members.size()]);
    out.latency = std::max(out.latency, link.latency);
    out.seconds_per_byte = std::max(out.seconds_per_byte, 1 / link.bandwidth);
  }
  return out;
}

}  // namespace

double ring_steps(Opcode opcode, std::size_t members) {
  return (opcode == Opcode::all_reduce ? 2 : 1) * (static_cast<double>(members) - 1);
}

double collective_seconds(Opcode opcode, double bytes, const std::vector<std::int32_t>& members, const Network& network) {
  const auto count = static_cast<double>(members.size());
  const auto ring_over = [&](const StepCost& step) {
    return ring_steps(opcode, members.size()) * (step.latency + bytes / count * step.seconds_per_byte);
  };
  if (const auto measured = network.collectives.find(opcode); measured != network.collectives.end())
    return ring_over({measured->second.latency, 1 / measured->second.bandwidth});
  const StepCost step = slowest(members, network);
  const double rounds = opcode == Opcode::all_reduce ? 2 : 1, ring = ring_over(step);
  if (opcode != Opcode::all_reduce && opcode != Opcode::broadcast) return ring;
  const auto depth = static_cast<double>(std::bit_width(members.size() - 1));  // of a binary tree
  return std::min(ring, rounds * depth * (step.latency + bytes * step.seconds_per_byte));
}

const Link& Network::at(std::int32_t from, std::int32_t to) const {
  const auto it = between.find({from, to});
  return it == between.end() ? link : it->second;
}

}  // namespace penstock
