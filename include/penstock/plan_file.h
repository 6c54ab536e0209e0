// SPDX-License-Identifier: Apache-2.0
// A plan as `penstock plan --out` writes it and --plan reads it: JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan.h"

namespace penstock {

// The file's keys, and where it was read.
struct PlanFile {
  // A stage as a run takes it.
  struct Stage {
    std::string name;                         // unique in the plan
    std::vector<std::string> nodes;           // their names in the model or graph
    std::vector<int> devices;                 // of the cluster
    int micro_batch = 1;                      // samples
    double forward = 0, backward = 0;         // seconds of one of its micro-batches
    double bytes = 0;                         // on each of its devices, at most
    std::vector<std::string> recompute = {};  // those of the nodes that the backward computes again, so that their results are not kept
    std::vector<std::string> swap = {};       // those whose backwards are the first to read what waits in the host's memory until then
  };
  // The tensors that one stage sends to another.
  struct Link {
    int from = 0, to = 0;  // stages
    double bytes = 0;      // of one micro-batch of the table, forward
    double seconds = 0;    // that they take there
  };
  std::string file;     // where it was read; "" for a new one
  std::string model;    // of the registry, or the graph's name
  std::string cluster;  // its name
  std::string planner;
  int samples = 0;                                                                 // of a step
  int microbatches = 1;                                                            // of a step, in the table
  std::vector<Stage> stages;                                                       // in topological order
  std::vector<Link> links;                                                         // one for each pair of stages that have an edge
  double bottleneck = 0, predicted_time = 0, lower_bound = 0, search_seconds = 0;  // seconds, as Plan has them
  bool optimal = false;            // whether no plan can be faster: predicted_time is lower_bound, to rounding
  int zero = -1;                   // what the devices of a group hold in shares (pipeline.zero); -1: as the run says
  int local = 1;                   // zero 3: devices of a node of a group, which hold the same parameters
  Split split = {};                // over how many devices each replica's tensors are split
  std::vector<double> peak_bytes;  // of each device
  Schedule schedule;               // of `stages` by number, an actor for each device that holds one
  std::string timeline;            // the step simulated, as report/timeline_json.h has it; "": none
};

// `detail`: with what running and drawing need beside the contract's keys: the table, stages' figures, links and the timeline.
std::string print(const PlanFile& plan, bool detail = true);
// Throws Error with file and key: no JSON, no plan, a key missing, unknown or doubled, a table of other stages.
PlanFile parse_plan(std::string_view json, const std::string& file);
bool is_plan(std::string_view text);  // whether it begins as print() does

// Returns the file of a plan of `problem`, with what evaluate() counted with and without a timeline.
PlanFile plan_file_of(const PlanProblem& problem, const Plan& plan);

// A stage's devices: "0", "1,4" or "0-3".
std::string devices_text(const PlanFile::Stage& stage);

// Returns for each actor of the table the number of its replicas, which share every micro-batch, of as many devices as the plan's split
// says; one where it has no stage. Throws Error where an actor's stages are on different devices, a device is of two actors, or a group has
// no whole replicas or no whole nodes of `local` of them.
std::vector<int> devices_of_actors(const PlanFile& plan);
// Throws Error where devices_of_actors() does, or where a step of `batch` samples cannot be cut for these devices.
void check_runnable(const PlanFile& plan, std::int64_t batch);
// Throws Error where the plan names a node that the model has not (with the nearest), or leaves one of the model's out.
void check_nodes(const PlanFile& plan, const std::vector<std::string>& nodes);

// A table of the plan's stages with their numbers in `names`. Actions of stages that `names` has not are left out.
Schedule renumbered(const PlanFile& plan, Schedule schedule, const std::vector<std::string>& names);

}  // namespace penstock
