// SPDX-License-Identifier: Apache-2.0
// TeraPipe runs its dynamic programme for every time t that a slice can take, in ascending order, until actors * t is above the best plan's
// time. There are length^2 / 2 such times. Here thresholds descend, and each rules out a range of them. Let the plan of least sum s among
// those below a threshold have the longest slice m. Then all plans below it have a sum of s or more, so
//   - one whose longest slice is not below m is no better than this plan;
//   - one whose longest slice is below m beats the best plan only if that slice is below (best - s) / (actors - 1).
// The smaller of both is the next threshold. Lengths that are too long for a threshold are too long for all later ones.
#include "batch/slice_sequences.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr double kEqual = 1e-12;  // relative: rounding of sums decides nothing

bool is_less(double a, double b) {
  return a < b * (1 - kEqual);
}

struct Times {
  double sum = kInfinity, longest = 0;
};

// The best way to cover what lies before some position, and the size of its last run.
struct Prefix {
  Times times;
  int last = 0;
};

bool is_worse(const Times& a, const Times& b) {
  return is_less(b.sum, a.sum) || (!is_less(a.sum, b.sum) && is_less(b.longest, a.longest));
}

// For every prefix of 0 .. n, the runs with the least sum, at equal sums with the least longest time, and then with the shortest last run.
// A run at `begin` has a size from 1 to reach[begin], which shrinks to the largest size whose times(size, begin) are finite.
template <class TimesOf>
std::vector<Prefix> cheapest_prefixes(std::vector<int>& reach, TimesOf&& times) {
  std::vector<Prefix> prefixes(reach.size() + 1);
  prefixes[0].times.sum = 0;
  for (std::size_t begin = 0; begin < reach.size(); ++begin) {
    const Times before = prefixes[begin].times;
    if (before.sum == kInfinity) continue;
    int largest = 0;
    for (int size = 1; size <= reach[begin]; ++size) {
      const Times run = times(size, static_cast<int>(begin));
      if (run.sum == kInfinity) continue;
      largest = size;
      const Times with = {before.sum + run.sum, std::max(before.longest, run.longest)};
      Prefix& prefix = prefixes[begin + at(size)];
      if (!is_worse(with, prefix.times)) prefix = {with, size};
    }
    reach[begin] = largest;
  }
  return prefixes;
}

std::vector<int> runs_of(const std::vector<Prefix>& prefixes) {
  std::vector<int> runs;
  for (std::size_t end = prefixes.size() - 1; end > 0; end -= at(prefixes[end].last)) runs.push_back(prefixes[end].last);
  std::reverse(runs.begin(), runs.end());
  return runs;
}

std::vector<int> whole_reach(int length) {
  std::vector<int> reach;
  for (int rest = length; rest > 0; --rest) reach.push_back(rest);
  return reach;
}

double time_of(const SliceProblem& problem, const Times& times) {
  return times.sum + (problem.actors - 1) * times.longest;
}

// The plan of least sum, and then of the least longest slice, whose slices all take less than `limit`. reach[k] is that of k + 1 sequences.
SlicePlan plan_below(double limit, const SliceProblem& problem, const SliceCost& cost, std::vector<std::vector<int>>& reach) {
  std::vector<std::vector<Prefix>> slices;  // of a group of 1, 2, .. sequences
  for (int n = 1; n <= problem.sequences; ++n)
    slices.push_back(cheapest_prefixes(reach[at(n - 1)], [&](int length, int context) {
      const double time = cost(n, length, context);
      return is_less(time, limit) ? Times{time, time} : Times{};
    }));
  std::vector<int> sizes = whole_reach(problem.sequences);
  const std::vector<Prefix> groups = cheapest_prefixes(sizes, [&](int size, int) { return slices[at(size - 1)].back().times; });
  const Times times = groups.back().times;
  SlicePlan plan{.time = time_of(problem, times), .sum = times.sum, .longest = times.longest, .groups = {}};
  if (plan.time == kInfinity) return plan;
  for (const int size : runs_of(groups)) plan.groups.push_back({size, runs_of(slices[at(size - 1)])});
  return plan;
}

}  // namespace

SlicePlan slice_sequences(const SliceProblem& problem, const SliceCost& cost) {
  SlicePlan best = equal_slices(problem, cost);
  std::vector<std::vector<int>> reach(at(problem.sequences), whole_reach(problem.length));
  double limit = best.time / problem.actors;  // no slice of a better plan reaches it, as the sum is not below the longest
  while (limit > 0) {
    const SlicePlan next = plan_below(limit, problem, cost, reach);
    if (is_less(next.time, best.time)) best = next;
    if (next.time == kInfinity || problem.actors == 1) break;
    limit = std::min(next.longest, (best.time - next.sum) / (problem.actors - 1));
  }
  return best;
}

SlicePlan equal_slices(const SliceProblem& problem, const SliceCost& cost) {
  SlicePlan best;
  for (int size = problem.sequences; size > 0; --size) {
    if (problem.sequences % size != 0) continue;
    for (int length = problem.length; length > 0; --length) {
      if (problem.length % length != 0) continue;
      Times times{.sum = 0, .longest = 0};
      for (int context = 0; context < problem.length; context += length) {
        const double time = cost(size, length, context);
        times = {times.sum + time, std::max(times.longest, time)};
      }
      const int count = problem.sequences / size;
      times.sum *= count;
      const double time = time_of(problem, times);
      if (!is_less(time, best.time)) continue;
      const SliceGroup group = {size, std::vector<int>(at(problem.length / length), length)};
      best = {time, times.sum, times.longest, std::vector<SliceGroup>(at(count), group)};
    }
  }
  return best;
}

}  // namespace penstock
