// SPDX-License-Identifier: Apache-2.0
#include "batch/module_list.h"

#include <algorithm>
#include <numeric>

namespace penstock {
namespace {

// Whether an equal part of the same micro-batch stands ahead and waits for the same.
bool has_twin(const ModuleJobs& jobs, const ModuleState& state, std::size_t segment) {
  const ModuleJobs::Segment& own = jobs.segments[segment];
  const std::vector<std::size_t>& parts = jobs.parts[own.micro_batch];
  return !own.backbone && std::ranges::any_of(parts, [&](std::size_t other) {
    return other < segment && jobs.segments[other].time == own.time && state.step[other] == state.step[segment];
  });
}

// When the segment's next step could begin; infinite also where its rank may not hold more.
double begin_of(const ModuleJobs& jobs, const ModuleState& state, std::size_t segment) {
  const double begin = state.earliest(jobs, segment);
  if (begin == kInfinity || jobs.is_backward(segment, state.step[segment])) return begin;
  return state.has_room(jobs, segment) ? begin : kInfinity;
}

// The end of the shortest W that waits on the rank.
double first_weight_end(const ModuleJobs& jobs, const ModuleState& state, std::size_t rank) {
  double shortest = kInfinity;
  for (const auto& [segment, stage] : state.weights[rank]) shortest = std::min(shortest, jobs.segments[segment].time);
  return state.free[rank] + shortest;
}

// Runs of a segment whose places in the order are those of its forward, backward and W.
struct ModulePlaces {
  std::vector<std::size_t> places;
  std::size_t count;

  std::size_t of(const ModuleJobs& jobs, const ModuleState& state, std::size_t segment) const {
    return places[segment + (jobs.is_backward(segment, state.step[segment]) ? count : 0)];
  }
  std::size_t of_weight(std::size_t segment) const { return places[segment + 2 * count]; }
};

}  // namespace

ModuleConflict conflict_of(const ModuleJobs& jobs, const ModuleState& state) {
  double first_end = kInfinity;
  ModuleConflict out;
  const auto consider = [&](double end, std::size_t rank) {
    if (end >= first_end) return;
    first_end = end;
    out.rank = rank;
  };
  for (std::size_t rank = 0; rank < jobs.ranks; ++rank) consider(first_weight_end(jobs, state, rank), rank);
  for (std::size_t s = 0; s < jobs.segments.size(); ++s)
    if (const double begin = begin_of(jobs, state, s); begin < kInfinity)
      consider(begin + jobs.time_of(s, state.step[s]), jobs.rank_of(s, state.step[s]));
  for (std::size_t s = 0; s < jobs.segments.size(); ++s) {
    const double begin = begin_of(jobs, state, s);
    // Something that takes no time begins at the first end itself.
    const bool conflicts = begin < first_end || (begin == first_end && jobs.time_of(s, state.step[s]) == 0);
    if (begin < kInfinity && jobs.rank_of(s, state.step[s]) == out.rank && conflicts && !has_twin(jobs, state, s))
      out.segments.push_back(s);
  }
  return out;
}

ModuleTable list_modules(const ModuleJobs& jobs, const std::vector<std::size_t>& order) {
  ModulePlaces places{std::vector<std::size_t>(order.size()), jobs.segments.size()};
  for (std::size_t i = 0; i < order.size(); ++i) places.places[order[i]] = i;
  ModuleState state(jobs);
  ModuleTable table{.makespan = 0, .ranks = std::vector<std::vector<ModuleRun>>(jobs.ranks)};
  for (std::size_t left = jobs.runs(); left > 0; --left) {
    const auto [rank, segments] = conflict_of(jobs, state);
    const auto& weights = state.weights[rank];
    const auto next = std::ranges::min_element(segments, {}, [&](std::size_t s) { return places.of(jobs, state, s); });
    const auto weight = std::ranges::min_element(weights, {}, [&](const auto& w) { return places.of_weight(w.first); });
    if (next == segments.end() && weight == weights.end()) return {};
    const bool takes_weight =
        weight != weights.end() && (next == segments.end() || places.of_weight(weight->first) < places.of(jobs, state, *next));
    table.ranks[rank].push_back(takes_weight ? state.start_weight(jobs, rank, static_cast<std::size_t>(weight - weights.begin()))
                                             : state.start(jobs, *next));
  }
  table.makespan = state.makespan();
  return table;
}

std::vector<std::size_t> order_in(const ModuleJobs& jobs, const ModuleTable& table) {
  const std::size_t count = jobs.segments.size();
  std::vector<double> begins((jobs.split ? 3 : 2) * count, 0);
  for (const std::vector<ModuleRun>& rank : table.ranks)
    for (const ModuleRun& run : rank) begins[static_cast<std::size_t>(run.segment) + (run.kind == Kind::F ? 0 : count)] += run.begin;
  const double all = std::accumulate(begins.begin(), begins.end(), 1.0);
  for (std::size_t s = 2 * count; s < begins.size(); ++s) begins[s] = all + begins[s - count];
  std::vector<std::size_t> order(begins.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return begins[i]; });
  return order;
}

}  // namespace penstock
