// SPDX-License-Identifier: Apache-2.0
// The check of `penstock check` for tables of several steps: run actor by actor and in one row, on one device (of each worker), a window
// must leave the same parameters, as both read the versions that the table says.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/compile.h"
#include "devices/cluster.h"
#include "driver/check.h"

namespace penstock {

struct WindowEnd {
  std::vector<double> losses;                                           // of the window's steps
  std::vector<std::pair<std::string, std::vector<double>>> parameters;  // behind the last one, in the model's order
};
// Whether some device has a copy of a parameter that is trained. Of a program for single devices: several actors add up its gradient.
bool has_trained_copies(const Program& program, const Prepared& prepared);
// Runs a window's program, which compile_training made, on a cluster whose state is set.
WindowEnd run_window(const Program& program, Cluster& cluster, const Prepared& prepared, const StepInput& input);

// The largest differences, as compare() of gradients has them; 0: equal to the bit.
Comparison compare(const WindowEnd& pipelined, const WindowEnd& in_one_row);

}  // namespace penstock
