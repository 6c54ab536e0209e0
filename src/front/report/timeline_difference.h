// SPDX-License-Identifier: Apache-2.0
// Two timelines beside each other: what takes longer in which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// A figure of both timelines.
struct BothFigures {
  double first = 0, second = 0;
  double difference() const { return second - first; }
};

struct KindDifference {
  std::string kind;        // "forward", "communication"
  std::int32_t stage = 0;  // -1: of no stage
  BothFigures time;        // over all devices, in the timelines' unit; 0 where a timeline has none of it
};
struct PeakDifference {
  std::string device;  // its name in both, or "A's | B's"
  BothFigures peak;    // bytes, or micro-batches; 0 where a timeline does not know it
};

struct TimelineDifference {
  bool seconds = true;
  std::string first, second;  // titles
  BothFigures makespan;
  BothFigures bubble;                 // 1 - computing / (devices * makespan)
  std::vector<KindDifference> kinds;  // by kind in the legend's order, then by stage
  std::vector<PeakDifference> peaks;  // by row; empty where neither knows its memory
  std::string other_devices;          // a sentence where the timelines have other devices, else ""
};

// Throws Error where one is in seconds and the other is not.
TimelineDifference difference(const Timeline& first, const Timeline& second);

// Titles, a table of step, bubble and peaks, and one of the time of each kind and stage; differences are B - A, and percent of A.
std::string difference_text(const TimelineDifference& difference);

}  // namespace penstock
