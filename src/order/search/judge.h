// SPDX-License-Identifier: Apache-2.0
// The questions that every search asks of a table, and of the time that it has.
#pragma once

#include <chrono>
#include <cmath>

#include "penstock/search.h"

namespace penstock {

inline constexpr double kRounding = 1e-9;  // two makespans that differ by less are equal

class SearchClock {
 public:
  explicit SearchClock(double seconds) : seconds_(seconds) {}
  // Whether this part of the seconds has passed.
  bool is_after(double part) const {
    return std::isfinite(seconds_) && std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() > part * seconds_;
  }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// When the actions of a table run by the problem's costs and links.
TableTime time_of(const SearchProblem& problem, const Schedule& schedule);
// Whether so much may live on an actor at once, up to rounding.
inline bool keeps_limit(const SearchProblem& problem, double live) {
  return live <= problem.memory_limit * (1 + kRounding);
}
// Completes a result that has its schedule and lower bound: its time, and whether it is proven to be best. A table that is not valid or
// does not keep the limit is a bug.
void judge(const SearchProblem& problem, SearchResult& result);

}  // namespace penstock
