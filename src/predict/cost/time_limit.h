// SPDX-License-Identifier: Apache-2.0
// The time that a search may take.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace penstock {

// Every loop of a search that may take long asks it, and says how many elementary steps (some nanoseconds each) it has made since it last
// asked: the clock is read once in kWork of them. A search that is late returns the best that it has, or says that it has none (fail_late).
// Once over it stays over.
class TimeLimit {
 public:
  static constexpr std::int64_t kWork = 1 << 16;

  TimeLimit() = default;  // without a limit
  // Starts now. `clock` gives seconds since any moment and never runs backwards; none: the steady clock.
  explicit TimeLimit(double seconds, std::function<double()> clock = {})
      : clock_(clock ? std::move(clock) : steady_seconds), begin_(clock_()), seconds_(std::max(seconds, 0.0)) {}

  bool is_over(std::int64_t work = kWork) {
    if (over_ || !clock_) return over_;
    work_ += work;
    return work_ >= kWork && left() == 0;
  }

  // The seconds that are left.
  double left() {
    if (!clock_) return std::numeric_limits<double>::infinity();
    work_ = 0;
    if (!over_) left_ = std::max(begin_ + seconds_ - clock_(), 0.0);
    over_ = left_ == 0;
    return left_;
  }
  double seconds() const { return clock_ ? seconds_ : std::numeric_limits<double>::infinity(); }
  // The share of all seconds that was used when the clock was last read.
  double share_used() const { return over_ ? 1 : seconds_ > 0 ? 1 - left_ / seconds_ : 0; }
  const std::function<double()>& clock() const { return clock_; }

 private:
  static double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

  std::function<double()> clock_;
  double begin_ = 0, seconds_ = 0, left_ = seconds_;
  std::int64_t work_ = 0;
  bool over_ = false;
};

// Throws Error: `who` ("graphpipe") found no plan of the graph in time.
[[noreturn]] void fail_late(const std::string& who, const std::string& graph, const TimeLimit& limit);

}  // namespace penstock
