// SPDX-License-Identifier: Apache-2.0
#include "profile/whole_steps.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "simulate/durations.h"

namespace penstock {
namespace {

constexpr int kHalvings = 30;  // to a thousandth of a microsecond from a second

std::map<Opcode, Link> moved(std::map<Opcode, Link> collectives, double seconds) {
  for (auto& [opcode, link] : collectives) link.latency = std::max(0.0, link.latency + seconds);
  return collectives;
}

bool has_collectives(const Program& program) {
  return std::ranges::any_of(program.devices, [](const DeviceProgram& device) {
    return std::ranges::any_of(device.instructions, [](const Instruction& i) { return is_collective(i.opcode); });
  });
}

}  // namespace

void fit_collectives(std::span<const MeasuredStep> steps, const std::string& backend, Costs& costs) {
  const auto found = costs.collectives.find(backend);
  if (found == costs.collectives.end()) return;
  const CostContext context{.backend = backend};
  const double overhead = costs.step_overhead[backend];
  const Network measured = network_of(costs, context);
  std::vector<std::pair<const MeasuredStep*, Durations>> with_collectives;
  double longest = 0, least = 0;
  for (const MeasuredStep& step : steps) {
    if (!has_collectives(*step.program)) continue;
    with_collectives.emplace_back(&step, durations_of(*step.program, costs, context));
    longest = std::max(longest, step.seconds);
  }
  for (const auto& [opcode, link] : found->second) least = std::min(least, -link.latency);
  const auto too_long = [&](double seconds) {
    Network network = measured;
    network.collectives = moved(found->second, seconds);
    double ratios = 0;
    for (const auto& [step, durations] : with_collectives)
      ratios += std::log((simulate(*step->program, durations, network).makespan + overhead) / step->seconds);
    return ratios > 0;
  };
  double most = longest;
  for (int i = 0; i < kHalvings && !with_collectives.empty(); ++i) {
    const double middle = (least + most) / 2;
    (too_long(middle) ? most : least) = middle;
  }
  if (!with_collectives.empty()) found->second = moved(found->second, most);
}

}  // namespace penstock
