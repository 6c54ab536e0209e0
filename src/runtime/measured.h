// A recorded step: as the simulator's input, and as a timeline.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/cluster.h"
#include "simulate/simulate.h"

namespace penstock {

struct Recording {
  Durations durations;        // of each instruction
  Durations arrivals;         // SimulateOptions::arrivals: of transfers that were waited for
  std::vector<double> begin;  // of each device, seconds after the first one
  double seconds = 0;         // from the first device's begin to the last one's end

  // With what was recorded; makespan - seconds is how wrong the simulator is.
  Simulation replay(const Program& program, bool record = false) const;
};

// `result` has spans, of devices on one machine.
Recording recording_of(const Program& program, const StepResult& result);

// A collective of a recorded step whose end was seen: by a device that had to wait for it.
struct CollectiveTime {
  Opcode opcode;
  std::size_t members;
  double bytes;    // as collective_seconds() counts them
  double seconds;  // since all members had started it and their group had done the one before
};
std::vector<CollectiveTime> collective_times(const Program& program, const StepResult& result);

// What each device did and when, exactly; transfers, causes and memory as the replay finds them.
Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title);

}  // namespace penstock
