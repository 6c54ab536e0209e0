// Stage DAG + schedule -> program.
#pragma once

#include <vector>

#include "penstock/schedule.h"
#include "program/program.h"
#include "stage/stages.h"

namespace penstock {

struct LowerOptions {
  int receive_ahead = 2;               // a receive is posted up to this many actions before its reader
  std::vector<std::string> recompute;  // stages that keep only their inputs
};

// Step graph (marks or none) + schedule -> a planned, verified program. Throws Error where stages, schedule and model do not fit.
Program lower(const Graph& step, const Schedule& schedule, const LowerOptions& options = {});

}  // namespace penstock
