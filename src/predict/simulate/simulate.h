// SPDX-License-Identifier: Apache-2.0
// The program interpreter under virtual time: what a program will take on devices and links that are described by numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/network.h"
#include "penstock/program.h"
#include "penstock/table.h"
#include "penstock/timeline.h"

namespace penstock {

// A number of seconds for each instruction, by device and instruction.
using Durations = std::vector<std::vector<double>>;

struct SimulateOptions {
  bool record = false;             // fill Simulation::timeline
  std::vector<double> begin = {};  // when each device starts; empty: all at 0
  // A replay: seconds from when both ends of a send or recv, or a host copy, have started it until its device sees it done, instead of
  // what the network says. NaN where it is not known: the network says.
  const Durations* arrivals = nullptr;
};

struct Simulation {
  double makespan = 0;
  std::vector<double> busy;      // of each device: in runs and copies
  std::vector<double> finished;  // when each was idle for good
  // Seconds that no order of the devices' work could beat: of the busiest device's instructions; the longest chain of instructions and
  // transfers that need one another.
  double busiest_device = 0, critical_path = 0;
  Timeline timeline;

  double lower_bound() const;
  double bubble() const;  // 1 - busy / (devices * makespan)
};

// `durations`: how long an instruction keeps its device (a run computes, an input is filled, a send, recv or
// host copy is started); frees take no time. Finishes exactly when verify() says that the program does. Linear in the number of
// instructions; with links of one medium or copies by the second end, times the logarithm of the number of devices. Throws Error where a
// duration is negative or not finite, and where the program never finishes.
Simulation simulate(const Program& program, const Durations& durations, const Network& network, const SimulateOptions& options = {});

// Throws Error for a jitter outside [0, 1), a slowdown that is not above 0 or their number not the devices'.
void disturb(Durations& durations, const Program& program, const Disturbance& disturbance);

}  // namespace penstock
