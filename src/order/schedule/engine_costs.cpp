#include "schedule/engine_costs.h"

#include <map>

namespace penstock {

void take_costs(EngineWork& work, const TableCosts& costs) {
  double longest = 0;
  for (const StageCosts& stage : costs.stages) {
    longest = std::max(longest, *std::max_element(stage.time.begin(), stage.time.end()));
    EngineStage& of = work.stages.emplace_back();
    std::copy_n(stage.time.begin(), of.time.size(), of.time.begin());
    of.forward_bytes = stage.forward_bytes;
    of.backward_bytes = stage.backward_bytes;
  }
  work.first = costs.first;
  work.tolerance = 1e-9 * longest;
}

std::function<double(std::int32_t, std::int32_t, double, double)> arrivals_over(const Network& network) {
  return [&network, free = std::map<std::pair<std::int32_t, std::int32_t>, double>()](std::int32_t from, std::int32_t to, double ready,
                                                                                      double bytes) mutable {
    const Link& link = network.at(from, to);
    double& until = free[link.medium < 0 ? std::pair(from, to) : std::pair(-1, link.medium)];
    until = std::max(until, ready) + bytes / link.bandwidth;
    return until + link.latency;
  };
}

}  // namespace penstock
