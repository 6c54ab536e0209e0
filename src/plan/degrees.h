// How many stages, how many replicas of each, how far their states are sharded, and in which order: for models too large to try all of it
// on the cluster. Pipeline degree p times data degree d is the number of devices; each of p actors is a group of d devices that share the
// stages stage % p. Every candidate is timed by the table simulator, with collectives over the links of the group's own devices.
//
// ZeRO levels (Rajbhandari et al., 1910.02054), of a step of m micro-batches in which all replicas take part:
//   0  gradients are all-reduced after a stage's last backward; every replica updates everything
//   1  gradients are reduce-scattered there, each replica updates its share and parameters are gathered again
//   2  as 1, but gradients are reduce-scattered after each run of a stage's backwards, so that only one run's are there in full
//   3  as 2, and each run of a stage's forwards or backwards gathers its parameters and drops them (with_gathers)
// Level 3 `by_block` gathers a stage's blocks one after the other, in each action anew, while the block before is at work: what FSDP does
// around a pipeline whose stages are many layers. Level 3 with `local` above 1 is among nodes of as many devices of a group that hold the
// same parameters; inside of a node it is level 1: a node's gradients are reduce-scattered behind all, its parameters gathered again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "penstock/plan.h"

namespace penstock {

// Bytes on a device for each parameter. Rajbhandari et al. count 2, 2, 12 in mixed precision.
struct StateBytes {
  double parameter = 4, gradient = 4, optimiser = 8;  // f32 and Adam
};

struct Degrees {
  int pipe = 1, data = 1;
  bool across = false;  // a group's devices stand `pipe` apart; else they are neighbours
  std::string schedule = {};
  int chunks = 1;                     // stages of an actor
  int samples = 1, microbatches = 1;  // of one replica
  int zero = 0;
  bool by_block = false;   // zero 3
  int local = 1;           // zero 3: devices of a group that hold the same parameters, a divisor of `data`
  int unit = 0;            // zeropp's micro-batches in a unit; 0: another schedule
  bool recompute = false;  // every stage's residuals, right before its backward
};
std::string text(const Degrees& degrees);

// Which candidates there are: of what is 0, -1 or empty all.
struct DegreesLimits {
  int pipe = 0, data = 0, chunks = 0, unit = 0, local = 0, zero = -1, by_block = -1, recompute = -1, across = -1;
  std::string schedule;
};
// "pipe=8,zero=3,schedule=zeropp". Throws Error with the keys that there are.
DegreesLimits parse_degrees_limits(const std::string& text);

struct DegreesOptions {
  StateBytes states{};
  double parameter_bytes = 4;  // that NodeCost::parameter_bytes counts for each parameter
  DegreesLimits only{};
  bool every = false;                  // candidates that cannot be the best are simulated too
  double seconds = kInfinity;          // of searching, at most
  std::function<double()> clock = {};  // PlanOptions::clock
};

struct DegreesResult {
  Degrees degrees;
  std::vector<std::vector<int>> stages = {};  // the nodes of each
  // Seconds of a step: what an actor computes on average, what it waits for others, and by how much collectives and transfers are longer
  // than what they hide behind. Their sum is `seconds`.
  double seconds = 0, compute = 0, bubble = 0, exposed = 0;
  std::vector<double> peak_bytes = {};  // on each device of actor a
  double memory = 0;                    // on the fullest: the most of them
  // Whole parameters that the fullest actor's replicas gather, and whole gradients that they reduce, in a step: elements.
  double gathered = 0, reduced = 0;
  bool fits = true;
};

struct DegreesPlan {
  // Of every family (schedule, level, by_block, recompute) what was simulated: those that fit first, the fastest first.
  std::vector<DegreesResult> results = {};
  bool late = false;   // the time was over before all were looked at
  int considered = 0;  // candidates; those that were not simulated cannot be faster than what fits of their family
};

// The devices of an actor's group.
std::vector<int> group_of(const Degrees& degrees, int actor);

// Of the problem's graph in a row: stages are cut where one output crosses. Its costs are of one way each on one device; micro-batches'
// sizes (PlanProblem::batches, else those of the costs) are here of one replica. A backward that does not say its weight gradients' time
// (NodeCost::weight) is half of them. Throws Error: no degrees fit the batch or the limits; none fits the memory, with the smallest that
// would do; no plan was found in time; a node that runs on no single device.
DegreesPlan plan_degrees(const PlanProblem& problem, const DegreesOptions& options);

// One candidate, simulated. Throws Error as make_schedule does.
DegreesResult simulate_degrees(const PlanProblem& problem, const DegreesOptions& options, const Degrees& degrees);

}  // namespace penstock
