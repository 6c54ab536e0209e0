// SPDX-License-Identifier: Apache-2.0
#include "cost/sizing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"

namespace penstock {
namespace {

constexpr double kRounding = 1e-9;  // of a quotient that should be whole
constexpr int kMost = 100'000;      // GPUs, workers times servers, of a simulated table

void check(bool is_right, const char* what, double value, const char* hint) {
  if (!is_right || !std::isfinite(value)) throw Error(concat(what, " is ", number(value)), {}, hint);
}

void check_overhead(double overhead) {
  check(overhead >= 0, "the overhead", overhead, "give a share of a GPU's computing time, 0 or more");
}

void check_traffic(const ParameterTraffic& traffic) {
  check(traffic.parameters > 0, "the size of the parameters", traffic.parameters, "give bytes, above 0");
  check(traffic.workers >= 1, "the number of workers", traffic.workers, "there is at least one");
  check(traffic.bandwidth > 0, "a server's bandwidth", traffic.bandwidth, "give bytes per second, above 0");
  check(traffic.compute > 0, "the computing time", traffic.compute, "give seconds, above 0");
}

// Stages 0 to senders-1 feed each of `takers` more, forward only, one on each actor, `steps` times.
struct Bipartite {
  StageShape shape;
  Schedule table;
  TableCosts costs;
};
Bipartite bipartite(int senders, int takers, int steps, double compute, double bytes) {
  Bipartite out;
  const int stages = senders + takers;
  std::vector<std::int32_t> all(senders);
  for (int s = 0; s < senders; ++s) all[s] = s;
  out.shape.predecessors.assign(stages, {});
  for (int t = senders; t < stages; ++t) out.shape.predecessors[t] = all;
  out.shape.has_backward.assign(stages, false);
  out.shape.has_parameters.assign(stages, false);
  out.table.actors.resize(stages);
  for (int s = 0; s < stages; ++s) {
    for (int m = 0; m < steps; ++m) out.table.actors[s].push_back({s, Kind::F, m});
    StageCosts& costs = out.costs.stages.emplace_back();
    if (s >= senders) continue;
    costs.of(Kind::F) = compute;
    costs.forward_bytes = bytes;
  }
  return out;
}

}  // namespace

StepFigures figures_of(const Timeline& timeline, int steps) {
  double computing = 0;
  for (const Activity& a : timeline.activities)
    if (a.lane == Lane::compute) computing += a.end - a.begin;
  const auto devices = static_cast<double>(timeline.devices.size());
  check(computing > 0, "the computing time of the timeline", computing, "give one of a step that was run");
  const double each = computing / devices;
  return {each / steps, std::max(0.0, timeline.makespan / each - 1) / devices};
}

double gpu_efficiency(double overhead, int gpus) {
  check_overhead(overhead);
  check(gpus >= 1, "the number of GPUs", gpus, "there is at least one");
  return (1 + overhead) / (1 + gpus * overhead);
}

int most_gpus(double overhead, double efficiency) {
  check_overhead(overhead);
  check(efficiency > 0 && efficiency <= 1, "the efficiency", efficiency, "give a share above 0, at most 1");
  const double most = std::floor((1 + overhead - efficiency) / (efficiency * overhead) + kRounding);
  constexpr int kAny = std::numeric_limits<int>::max();
  return most < kAny ? std::max(1, static_cast<int>(most)) : kAny;
}

double simulated_efficiency(double overhead, int gpus) {
  gpu_efficiency(overhead, gpus);
  check(gpus <= kMost, "the number of GPUs", gpus, "give at most 100,000: each is simulated");
  const auto time = [&](int count) {
    const Bipartite step = bipartite(count, 1, 1, /*compute=*/1, /*bytes=*/overhead);
    Network network;
    for (int g = 0; g < count; ++g) network.between[{g, count}] = {.bandwidth = 1, .medium = 0};
    return time_table(step.table, step.shape, step.costs, {.network = network}).makespan;
  };
  return time(1) / time(gpus);
}

int parameter_servers(const ParameterTraffic& traffic) {
  check_traffic(traffic);
  const double servers = 2 * traffic.parameters * traffic.workers / (traffic.bandwidth * traffic.compute);
  check(servers <= kMost, "the number of servers", servers, "are parameters and bandwidth in one unit?");
  return std::max(1, static_cast<int>(std::ceil(servers * (1 - kRounding))));
}

double exposed_traffic(const ParameterTraffic& traffic, int servers) {
  check_traffic(traffic);
  check(servers >= 1, "the number of servers", servers, "there is at least one");
  check(static_cast<double>(traffic.workers) * servers <= kMost, "the number of links", static_cast<double>(traffic.workers) * servers,
        "give at most 100,000 pairs of a worker and a server: each is simulated");
  constexpr int kSteps = 64;  // of which the last half is counted
  const auto time = [&](int steps) {
    const Bipartite run = bipartite(traffic.workers, servers, steps, traffic.compute, 2 * traffic.parameters / servers);
    Network network;
    for (int w = 0; w < traffic.workers; ++w)
      for (int s = 0; s < servers; ++s) network.between[{w, traffic.workers + s}] = {.bandwidth = traffic.bandwidth, .medium = s};
    return time_table(run.table, run.shape, run.costs, {.network = network}).makespan;
  };
  return std::max(0.0, (time(kSteps) - time(kSteps / 2)) / (kSteps - kSteps / 2) - traffic.compute);
}

}  // namespace penstock
