// The program interpreter under virtual time: what a program will take on devices and links that are described by numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "simulate/network.h"
#include "simulate/timeline.h"

namespace penstock {

// Seconds that each instruction keeps its device (a run: computing), by device and instruction. Frees cost nothing.
using Durations = std::vector<std::vector<double>>;

struct SimulateOptions {
  bool record = false;  // fill Simulation::timeline
};

struct Simulation {
  double makespan = 0;
  std::vector<double> busy;      // of each device: in runs
  std::vector<double> finished;  // when it was idle for good
  double bubble() const;         // 1 - busy / (devices * makespan)
  Timeline timeline;             // activities and memory, if recorded
};

// Of a verified program: finishes exactly when verify() says that it does. Linear in the number of instructions; links of one medium, and
// copies by the second end, cost a heap of devices (log of their number a transfer).
// Throws Error where a duration is negative or not finite.
Simulation simulate(const Program& program, const Durations& durations, const Network& network, const SimulateOptions& options = {});

}  // namespace penstock
