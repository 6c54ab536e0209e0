// SPDX-License-Identifier: Apache-2.0
#include "batch/cover.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/numbers.h"

namespace penstock {
namespace {

constexpr double kUnitRounding = 1e-9;  // of a unit, that sums of memory may be off

// The unit of a set becomes what a unit of that entry saves that saves most, so that no fewer units do than are missing.
void normalise(CoverSet& set) {
  double most = 0;
  for (const double saved : set.saved) most = std::max(most, saved);
  if (most <= 0) {
    set.over = set.over > 0 ? kInfinity : 0;
    return;
  }
  for (double& saved : set.saved) saved /= most;
  set.over /= most;
}

class CoverSearch {
 public:
  CoverSearch(const std::vector<CoverSet>& sets, const std::vector<CoverEntry>& entries, std::int64_t nodes)
      : sets_(sets), entries_(entries), nodes_left_(nodes), value_(entries.size(), 0), fixed_(entries.size(), false) {
    for (const CoverSet& set : sets) dense_.push_back(&set);
    const auto density = [](const CoverSet* set) { return set->over / static_cast<double>(set->entries.size()); };
    std::stable_sort(dense_.begin(), dense_.end(), [&](const CoverSet* a, const CoverSet* b) { return density(a) > density(b); });
  }

  Cover run() {
    fill_from_behind();
    if (best_.feasible) branch(0);
    best_.proven = nodes_left_ >= 0;
    return best_;
  }

 private:
  double missing(const CoverSet& set) const {
    double sum = set.over;
    for (std::size_t i = 0; i < set.entries.size(); ++i) sum -= set.saved[i] * value_[set.entries[i]];
    return sum > kUnitRounding ? sum : 0;
  }
  double possible(const CoverSet& set) const {
    double sum = 0;
    for (std::size_t i = 0; i < set.entries.size(); ++i)
      if (const std::size_t entry = set.entries[i]; !fixed_[entry]) sum += set.saved[i] * (entries_[entry].most - value_[entry]);
    return sum;
  }
  // The units of an entry by which the set misses nothing more, or all that it may still have.
  int units_for(const CoverSet& set, std::size_t i) const {
    const int left = entries_[set.entries[i]].most - value_[set.entries[i]];
    const double wanted = missing(set) / set.saved[i];
    return wanted < left ? static_cast<int>(std::ceil(wanted - kUnitRounding)) : left;
  }
  // More units of the entry help no set.
  int most_useful(std::size_t entry) const {
    int most = 0;
    for (const CoverSet& set : sets_)
      if (const auto found = std::ranges::find(set.entries, entry); found != set.entries.end() && missing(set) > 0) {
        const auto i = static_cast<std::size_t>(found - set.entries.begin());
        if (set.saved[i] > 0) most = std::max(most, units_for(set, i));
      }
    return most;
  }

  void keep(double cost) { best_ = {.feasible = true, .cost = cost, .units = value_, .proven = false}; }

  // Set by set, gives what is missing to its last entries: they are in the most of the sets that come.
  void fill_from_behind() {
    double cost = 0;
    for (const CoverSet& set : sets_) {
      for (std::size_t i = set.entries.size(); i-- > 0 && missing(set) > 0;)
        if (set.saved[i] > 0) {
          const int units = units_for(set, i);
          value_[set.entries[i]] += units;
          cost += units * entries_[set.entries[i]].cost;
        }
      if (missing(set) > 0) return;
    }
    keep(cost);
    std::fill(value_.begin(), value_.end(), 0);
  }

  // Returns a lower bound on what must be paid: the sum over sets that share no open entry. What a set misses costs no less than at its
  // best rate, and no fewer whole units than the missing ones, each of them no less than its cheapest.
  double least_more() const {
    std::vector<bool> taken(value_.size(), false);
    double sum = 0;
    for (const CoverSet* set : dense_) {
      const double left = missing(*set);
      if (left <= 0 || std::any_of(set->entries.begin(), set->entries.end(), [&](std::size_t e) { return taken[e]; })) continue;
      double rate = kInfinity, cheapest = kInfinity;
      for (std::size_t i = 0; i < set->entries.size(); ++i) {
        const std::size_t entry = set->entries[i];
        taken[entry] = !fixed_[entry];
        if (fixed_[entry] || set->saved[i] <= 0) continue;
        rate = std::min(rate, entries_[entry].cost / set->saved[i]);
        cheapest = std::min(cheapest, entries_[entry].cost);
      }
      if (rate == kInfinity) return kInfinity;
      sum += std::max(left * rate, std::ceil(left - kUnitRounding) * cheapest);
    }
    return sum;
  }

  // Fixes one entry of a set that misses something at every value.
  void branch(double cost) {
    if (--nodes_left_ < 0 || cost + least_more() >= best_.cost * (1 - kUnitRounding)) return;
    const CoverSet* tightest = nullptr;
    double least_slack = 0;
    for (const CoverSet& set : sets_) {
      const double left = missing(set), slack = possible(set) - left;
      if (left <= 0) continue;
      if (slack < -kUnitRounding) return;
      if (tightest == nullptr || slack < least_slack) {
        tightest = &set;
        least_slack = slack;
      }
    }
    if (tightest == nullptr) return keep(cost);
    std::size_t i = tightest->entries.size() - 1;
    while (fixed_[tightest->entries[i]] || tightest->saved[i] <= 0) --i;
    const std::size_t entry = tightest->entries[i];
    const int most = most_useful(entry);
    fixed_[entry] = true;
    for (int value = most; value >= 0; --value) {
      value_[entry] = value;
      branch(cost + value * entries_[entry].cost);
    }
    fixed_[entry] = false;
  }

  const std::vector<CoverSet>& sets_;
  const std::vector<CoverEntry>& entries_;
  std::vector<const CoverSet*> dense_;  // those that need the most per entry first
  std::int64_t nodes_left_ = 0;
  std::vector<int> value_;
  std::vector<bool> fixed_;
  Cover best_;
};

}  // namespace

Cover least_cover(std::vector<CoverSet> sets, const std::vector<CoverEntry>& entries, std::int64_t nodes) {
  for (CoverSet& set : sets) normalise(set);
  std::erase_if(sets, [](const CoverSet& set) { return set.over <= kUnitRounding; });
  std::ranges::sort(sets);
  const auto [again, end] = std::ranges::unique(sets);
  sets.erase(again, end);
  return CoverSearch(sets, entries, nodes).run();
}

}  // namespace penstock
