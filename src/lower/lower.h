// Stage DAG + schedule -> program.
#pragma once

#include <vector>

#include "penstock/schedule.h"
#include "program/program.h"
#include "stage/stages.h"

namespace penstock {

struct LowerOptions {
  int receive_ahead = 2;  // a receive is posted up to this many actions before its reader
  // Devices of each actor, each with parts of every micro-batch (data parallelism); empty: one each. The step has parts_of(devices) times
  // the table's micro-batches.
  std::vector<int> devices = {};
  std::vector<std::string> recompute = {};  // stages whose backward computes again all that it reads of F; such a stage has no R
};

// Into how many parts a micro-batch must be cut for each of the groups to share it: the least common multiple.
int parts_of(const std::vector<int>& devices);

// The passes before the cut: the step as lower() cuts it. Throws Error where it is no sound graph or a stage cannot be inferred.
StagedStep prepare_stages(const Graph& traced);

// Stages whose backward the table splits anywhere.
std::vector<bool> split_stages(const Schedule& schedule, std::size_t stages);

// Stages that the table recomputes (R) anywhere.
std::vector<bool> recomputed_stages(const Schedule& schedule, std::size_t stages);

// Step graph (marks or none) + schedule -> a planned, verified program. Throws Error where stages, schedule and model do not fit.
Program lower(const Graph& step, const Schedule& schedule, const LowerOptions& options = {});

}  // namespace penstock
