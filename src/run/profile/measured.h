// SPDX-License-Identifier: Apache-2.0
// A recorded step as the simulator's input, and as a timeline.
#pragma once

#include <string>
#include <vector>

#include "devices/cluster.h"
#include "penstock/program.h"
#include "simulate/simulate.h"

namespace penstock {

struct Recording {
  Durations durations;        // seconds of each instruction
  Durations arrivals;         // for SimulateOptions::arrivals: transfers that were waited for
  std::vector<double> begin;  // of each device, in seconds after the first one's
  double seconds = 0;         // from the first device's begin to the last one's end

  // Simulates the step with the recorded durations; makespan - seconds is the simulator's error.
  Simulation replay(const Program& program, bool record = false) const;
};

// `result` must have spans, and its devices must be on one machine.
Recording recording_of(const Program& program, const StepResult& result);

// A collective of a recorded step whose end was seen, because a device had to wait for it.
struct CollectiveTime {
  Opcode opcode;
  std::size_t members;
  double bytes;    // as collective_seconds() counts them
  double seconds;  // since all members had started it and their group had finished the one before
};
std::vector<CollectiveTime> collective_times(const Program& program, const StepResult& result);

// Returns what each device did and when, exactly as recorded; transfers, causes and memory are as the replay finds them.
Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title);

}  // namespace penstock
