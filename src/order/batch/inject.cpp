// SPDX-License-Identifier: Apache-2.0
#include "batch/inject.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include "base/text.h"
#include "batch/cyclic.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct TimePoint {
  double forward = 0, backward = 0;
};

double square_distance(const TimePoint& a, const TimePoint& b) {
  const double f = a.forward - b.forward, g = a.backward - b.backward;
  return f * f + g * g;
}

std::size_t nearest_centre(const std::vector<TimePoint>& centres, const TimePoint& point) {
  const auto nearer = [&](const TimePoint& a, const TimePoint& b) { return square_distance(a, point) < square_distance(b, point); };
  return static_cast<std::size_t>(std::min_element(centres.begin(), centres.end(), nearer) - centres.begin());
}

// The first point, and then always the one that is farthest from all before.
std::vector<TimePoint> far_points(const std::vector<TimePoint>& points, std::size_t k) {
  std::vector<TimePoint> out = {points[0]};
  const auto alone = [&](const TimePoint& p) { return square_distance(p, out[nearest_centre(out, p)]); };
  while (out.size() < k)
    out.push_back(
        *std::max_element(points.begin(), points.end(), [&](const TimePoint& a, const TimePoint& b) { return alone(a) < alone(b); }));
  return out;
}

MicroBatchGroups k_means(const std::vector<TimePoint>& points, std::size_t k) {
  constexpr int kRounds = 50;
  std::vector<TimePoint> centres = far_points(points, k);
  MicroBatchGroups groups;
  for (int round = 0; round < kRounds; ++round) {
    MicroBatchGroups next(k);
    for (std::size_t i = 0; i < points.size(); ++i) next[nearest_centre(centres, points[i])].push_back(i);
    if (next == groups) break;
    groups = std::move(next);
    for (std::size_t g = 0; g < k; ++g) {
      if (groups[g].empty()) continue;
      TimePoint sum;
      for (const std::size_t i : groups[g]) sum = {sum.forward + points[i].forward, sum.backward + points[i].backward};
      const auto size = static_cast<double>(groups[g].size());
      centres[g] = {sum.forward / size, sum.backward / size};
    }
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

MicroBatches in_order(const MicroBatches& work, const std::vector<std::size_t>& order) {
  MicroBatches out;
  for (const std::size_t m : order) {
    out.forward.push_back(work.forward[m]);
    out.backward.push_back(work.backward[m]);
    out.size.push_back(work.size[m]);
  }
  return out;
}

std::vector<std::vector<std::size_t>> orders_of(MicroBatchGroups groups, std::size_t count) {
  constexpr std::size_t kMost = 8;  // 40,320 orders
  if (groups.size() > kMost)
    throw Error(concat("there are ", groups.size(), " groups of micro-batches, and every order of them is tried: at most ", kMost), {},
                "put like micro-batches into one group");
  std::vector<std::vector<std::size_t>> out;
  std::sort(groups.begin(), groups.end());
  do {
    std::vector<std::size_t>& order = out.emplace_back();
    for (const auto& group : groups) order.insert(order.end(), group.begin(), group.end());
  } while (std::next_permutation(groups.begin(), groups.end()));
  std::vector<std::size_t>& given = out.emplace_back(count);
  std::iota(given.begin(), given.end(), std::size_t{0});
  return out;
}

}  // namespace

MicroBatchGroups groups_of_equals(const MicroBatches& work) {
  std::map<std::tuple<double, double, double>, std::size_t> known;
  MicroBatchGroups groups;
  for (std::size_t m = 0; m < work.count(); ++m) {
    const auto [group, is_new] = known.emplace(std::tuple(work.forward[m], work.backward[m], work.size[m]), groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(m);
  }
  return groups;
}

MicroBatchGroups groups_of_like(const MicroBatches& work, std::size_t k, std::uint64_t seed) {
  std::vector<TimePoint> points;
  for (std::size_t m = 0; m < work.count(); ++m) points.push_back({work.forward[m], work.backward[m]});
  MicroBatchGroups groups;
  if (points.size() <= k) {
    for (std::size_t m = 0; m < points.size(); ++m) groups.push_back({m});
    return groups;
  }
  groups = k_means(points, k);
  std::mt19937_64 random(seed);
  for (auto& group : groups)
    for (std::size_t i = group.size(); i > 1; --i) std::swap(group[i - 1], group[random() % i]);
  return groups;
}

Injection inject(int actors, const MicroBatches& work, MicroBatchGroups groups, double cap, double latency) {
  const auto orders = orders_of(std::move(groups), work.count());
  std::optional<Injection> best;
  for (const bool capped : {false, true}) {
    for (const std::vector<std::size_t>& order : orders) {
      const MicroBatches ordered = in_order(work, order);
      Schedule schedule = cyclic_schedule(actors, ordered.size, capped ? cap : kInfinity);
      TableTime time = time_micro_batches(schedule, ordered, latency);
      const bool keeps = time.peak() <= cap;
      if ((keeps || capped) && (!best || time.makespan < best->time.makespan)) best = {order, std::move(schedule), std::move(time), capped};
    }
    if (best) break;
  }
  return *std::move(best);
}

}  // namespace penstock
