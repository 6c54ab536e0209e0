// SPDX-License-Identifier: Apache-2.0
// Random local search, once for rows, tables and plans: what is changed is the caller's, whether a change stays is said here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace penstock {

// Late acceptance (Burke and Bykov 2017): a change stays that is no worse than what is there, or than what was there 64 tries ago.
class LateAcceptance {
 public:
  explicit LateAcceptance(double cost) : now_(cost), history_(64, cost) {}

  double most(std::int64_t n) { return std::min(std::max(late(n), now_), std::numeric_limits<double>::max()); }
  void tried(std::int64_t n, double cost, bool stays) {
    if (stays) now_ = cost;
    late(n) = stays ? now_ : std::min(late(n), now_);
  }

 private:
  double& late(std::int64_t n) { return history_[static_cast<std::size_t>(n) % history_.size()]; }

  double now_;
  std::vector<double> history_;
};

// Simulated annealing (Kirkpatrick et al. 1983): a change stays that is worse by no more than a share which is drawn, and falls with the
// progress, from 0 to 1.
struct Cooling {
  double now = 0;  // the cost
  std::mt19937_64& random;
  std::function<double(std::int64_t n)> progress;

  double most(std::int64_t n) {
    constexpr double kHot = 0.15, kCold = 0.002;  // of the cost
    const double heat = kHot * std::pow(kCold / kHot, progress(n));
    const double luck = -std::log((static_cast<double>(random() >> 11) + 1) * 0x1p-53);
    return now * (1 + heat * luck);
  }
  void tried(std::int64_t, double cost, bool stays) {
    if (stays) now = cost;
  }
};

// Moves an element to another place; those between make room.
template <class Element>
void move_element(std::vector<Element>& row, std::size_t from, std::size_t to) {
  const auto at = [&](std::size_t i) { return row.begin() + static_cast<std::ptrdiff_t>(i); };
  from < to ? std::rotate(at(from), at(from) + 1, at(to) + 1) : std::rotate(at(to), at(from), at(from) + 1);
}

// At most `tries` times, while goes_on(n): change(most) makes a change and returns its cost, which may be anything above `most` where it
// only knows that it is, or nothing where it found none to make. It stays where it costs at most `most`; settle(cost, stays) keeps it or
// takes it back.
template <class Acceptance, class GoesOn, class Change, class Settle>
void anneal(std::int64_t tries, Acceptance acceptance, GoesOn&& goes_on, Change&& change, Settle&& settle) {
  for (std::int64_t n = 0; n < tries && goes_on(n); ++n) {
    const double most = acceptance.most(n);
    const std::optional<double> cost = change(most);
    if (!cost) continue;
    const bool stays = *cost <= most;
    acceptance.tried(n, *cost, stays);
    settle(*cost, stays);
  }
}

}  // namespace penstock
