// SPDX-License-Identifier: Apache-2.0
// A predicted step beside a measured one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

struct Pair {
  double predicted = 0, measured = 0;
  double error() const { return measured > 0 ? predicted / measured - 1 : 0; }
};

// Runs of one task, or transfers from one device to another.
struct TaskPair {
  std::string name;
  std::int64_t count = 0;  // measured
  Pair seconds;            // mean of one
};
struct DevicePair {
  std::string name;
  Pair busy;   // seconds in runs
  Pair first;  // begin of its first run
  Pair last;   // end of its last run
  Pair peak;   // bytes
};
struct TimelineComparison {
  Pair makespan;
  std::vector<TaskPair> tasks;  // in the measured timeline's order
  std::vector<DevicePair> devices;
};

// Throws Error where they are not of one program: other devices, other tasks, or another number of runs of a task.
TimelineComparison compare(const Timeline& predicted, const Timeline& measured);

// "12.3 ms   12.1 ms   +1.7 %" a line.
std::string comparison_text(const TimelineComparison& comparison);

}  // namespace penstock
