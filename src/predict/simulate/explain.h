// SPDX-License-Identifier: Apache-2.0
// Why a step takes as long as it does: read off a timeline, whether of a table, of a program or measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// From the activity that ends last back through its causes, so that nothing of it could be later without the step being longer. Each moment
// of the step belongs to one activity of it, or to none: the four times add up to the makespan.
struct CriticalPath {
  std::vector<std::int64_t> activities;        // of the timeline, in time
  double compute = 0, transfer = 0, host = 0;  // in its activities
  double waiting = 0;                          // between a cause and its effect, and before an activity whose cause is not known
  std::vector<double> compute_on;              // of `compute`, on each device
};
CriticalPath critical_path(const Timeline& timeline);

// The things that a device does while it computes nothing. They add up to makespan - computing.
struct Idle {
  double warm_up = 0;        // before it computes first
  double drain = 0;          // after it computed last
  double dependency = 0;     // while another device computes what it needs
  double communication = 0;  // while what it needs is on its way
  double host = 0;           // while its own thread, or one that it waits for, starts transfers or handles inputs and outputs
  double total() const { return warm_up + drain + dependency + communication + host; }
};
// Waits follow the causes of the activity that ends them; where a cause is not known, a transfer to the device tells communication from
// dependency.
std::vector<Idle> idle_times(const Timeline& timeline);

// Time that each device computes.
std::vector<double> compute_times(const Timeline& timeline);

// The step with something changed, simulated again: "no latency" and its makespan.
struct Variant {
  std::string change;  // completes "with ...": "no latency", "actor 2 10 % faster"
  std::function<double()> makespan;
};
struct Gain {
  std::string change;
  double makespan = 0;
  double saved = 0;  // part of the makespan, 0.18
};

struct Explanation {
  double makespan = 0, bubble = 0;  // bubble: 1 - computing / (devices * makespan)
  CriticalPath path;
  std::vector<Idle> idle;   // by device
  Idle all;                 // of all devices
  double busiest = 0;       // lower bounds: the work of the busiest device,
  std::int32_t device = 0;  // this one;
  double dependencies = 0;  // and the longest chain of needs with unlimited devices (0: not known)
  std::vector<Gain> gains;  // best first
};
// `dependencies`: see Explanation. Calls every variant.
Explanation explain(const Timeline& timeline, double dependencies = 0, const std::vector<Variant>& variants = {});

// A few sentences with numbers, each a line.
std::string explain_text(const Timeline& timeline, const Explanation& explanation);

}  // namespace penstock
