// SPDX-License-Identifier: Apache-2.0
#include "profile/planned_workers.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/numbers.h"

namespace penstock {
namespace {

std::vector<double> speeds_of(const ClusterSpec& cluster, const std::vector<int>& devices) {
  std::vector<double> out;
  for (const int device : devices) out.push_back(cluster.devices[at(device)].speed);
  return out;
}

// Workers of the devices in this order, of which each `stride`-th is the same worker's where they are dealt by turns.
VirtualWorkers workers_of(const std::vector<double>& layers, const ClusterSpec& cluster, const std::vector<int>& devices, int workers,
                          bool by_turns) {
  const int stages = static_cast<int>(devices.size()) / workers;
  VirtualWorkers out{.devices = std::vector<std::vector<int>>(at(workers)), .layers = {}, .in_flight = stages};
  for (int i = 0; i < workers * stages; ++i) out.devices[at(by_turns ? i % workers : i / stages)].push_back(devices[at(i)]);
  for (const std::vector<int>& own : out.devices) out.layers.push_back(balanced_cut(layers, speeds_of(cluster, own)));
  return out;
}

void add_swaps(const VirtualWorkers& of, const std::vector<double>& layers, const ClusterSpec& cluster, std::vector<VirtualWorkers>& out) {
  const std::size_t stages = of.devices[0].size(), places = of.devices.size() * stages;
  for (std::size_t a = 0; a < places; ++a)
    for (std::size_t b = a + 1; b < places; ++b) {
      VirtualWorkers& next = out.emplace_back(of);
      std::swap(next.devices[a / stages][a % stages], next.devices[b / stages][b % stages]);
      for (const std::size_t worker : {a / stages, b / stages})
        next.layers[worker] = balanced_cut(layers, speeds_of(cluster, next.devices[worker]));
    }
}

void add_moves(const VirtualWorkers& of, std::vector<VirtualWorkers>& out) {
  for (std::size_t worker = 0; worker < of.layers.size(); ++worker)
    for (std::size_t stage = 0; stage + 1 < of.layers[worker].size(); ++stage)
      for (const int moved : {-1, 1}) {
        VirtualWorkers next = of;
        std::vector<int>& own = next.layers[worker];
        own[stage] += moved;
        own[stage + 1] -= moved;
        if (own[stage] > 0 && own[stage + 1] > 0) out.push_back(std::move(next));
      }
}

}  // namespace

std::vector<int> balanced_cut(const std::vector<double>& layers, const std::vector<double>& speeds) {
  const std::size_t count = layers.size(), stages = speeds.size();
  struct Cut {
    double slowest = std::numeric_limits<double>::infinity();
    std::size_t begin = 0;  // of the last stage
  };
  std::vector<std::vector<Cut>> best(stages + 1, std::vector<Cut>(count + 1));  // of the first stages with the first layers
  best[0][0].slowest = 0;
  for (std::size_t s = 1; s <= stages; ++s)
    for (std::size_t end = s; end <= count; ++end) {
      double load = 0;
      for (std::size_t begin = end; begin-- > s - 1;) {
        load += layers[begin] / speeds[s - 1];
        const double slowest = std::max(load, best[s - 1][begin].slowest);
        if (slowest < best[s][end].slowest) best[s][end] = {slowest, begin};
      }
    }
  std::vector<int> out(stages);
  for (std::size_t s = stages, end = count; s > 0; --s) {
    out[s - 1] = static_cast<int>(end - best[s][end].begin);
    end = best[s][end].begin;
  }
  return out;
}

std::vector<VirtualWorkers> first_workers(const std::vector<double>& layers, const ClusterSpec& cluster, int workers) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<VirtualWorkers> out = {workers_of(layers, cluster, devices, workers, /*by_turns=*/false)};
  std::ranges::stable_sort(devices, std::greater(), [&](int device) { return cluster.devices[at(device)].speed; });
  out.push_back(workers_of(layers, cluster, devices, workers, /*by_turns=*/true));
  return out;
}

std::vector<VirtualWorkers> neighbours(const VirtualWorkers& of, const std::vector<double>& layers, const ClusterSpec& cluster) {
  std::vector<VirtualWorkers> out;
  add_moves(of, out);
  for (int in_flight = static_cast<int>(of.devices[0].size()); in_flight >= 1; --in_flight)
    if (in_flight != of.in_flight) out.emplace_back(of).in_flight = in_flight;
  for (const int more : {-1, 1})
    if (of.devices.size() > 1 && of.distance + more >= 0) out.emplace_back(of).distance += more;
  add_swaps(of, layers, cluster, out);
  return out;
}

}  // namespace penstock
