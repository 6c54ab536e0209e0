// SPDX-License-Identifier: Apache-2.0
// Chooses how many stages there are, how many replicas of each, over how many devices each replica's tensors are split, how far states are
// sharded, and the order of work: for models too large to try all of that on the cluster. The number of devices is the product of the
// degrees: pipeline p, data d, tensor t and context c. Each of p actors is a group of d * c * t devices that share the stages stage % p.
// Every candidate is timed by the table simulator, with collectives over the links of the group's own devices.
//
// ZeRO levels (Rajbhandari et al., 1910.02054), for a step of m micro-batches in which all replicas take part:
//   0  gradients are all-reduced after a stage's last backward; every replica updates everything
//   1  gradients are reduce-scattered there, each replica updates its share and parameters are gathered again
//   2  as 1, but gradients are reduce-scattered after each stretch of a stage's backwards, so that only one stretch's are there in full
//   3  as 2, and each stretch of a stage's forwards or backwards gathers its parameters and drops them (with_gathers)
// Level 3 `by_block` gathers a stage's atoms one after the other, in each action anew, while the atom before is at work: as FSDP does
// around a pipeline whose stages are many layers. Level 3 with `local` above 1 shards between hosts, each of `local` devices of a group
// that hold the same parameters; inside of a host it is level 1: a host's gradients are reduce-scattered at the end, and its parameters
// gathered again.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// Bytes on a device for each parameter. (Rajbhandari et al. count 2, 2, 12 in mixed precision.)
struct StateBytes {
  double parameter = 4, gradient = 4, optimiser = 8;  // f32 and Adam
};

// The bytes of states as Penstock trains in this dtype: parameters of bf16 are f32 with a copy in bf16, their gradients are summed in f32.
StateBytes states_of(const std::string& dtype);

// Over how many devices a replica's tensors are split (src/step/transform/README.md).
struct Split {
  int tensor = 1;         // as [layout] says: by heads, mlp, vocab
  int context = 1;        // by positions of the sequence
  bool sequence = false;  // what layers pass on is split by positions, over tensor: sequence parallelism (Korthikanti et al., 2205.05198)

  int devices() const { return tensor * context; }  // of each replica
  auto operator<=>(const Split&) const = default;
};

// The ways in which devices are many: pipelines' actors, replicas, parts of a sequence, parts of tensors.
enum class DegreeAxis : std::uint8_t { pipe, data, context, tensor };
// From the axis whose members are farthest from each other to that whose members are neighbours.
using AxisOrder = std::array<DegreeAxis, 4>;
inline constexpr AxisOrder kUsualOrder = {DegreeAxis::pipe, DegreeAxis::data, DegreeAxis::context,
                                          DegreeAxis::tensor};  // tensor's members are neighbours

// One candidate of the planner: how the devices are used, and how a step is cut.
struct Degrees {
  int pipe = 1, data = 1;             // actors; replicas of each stage
  Split split = {};                   // of each replica's tensors
  AxisOrder order = kUsualOrder;      // in which devices are numbered
  std::string schedule = {};          // its name, as make_schedule() takes it
  int chunks = 1;                     // stages per actor
  int samples = 1, microbatches = 1;  // samples in a micro-batch of each replica; micro-batches in its step
  int zero = 0;                       // ZeRO level, as above
  bool by_block = false;              // only with zero 3
  int local = 1;                      // only with zero 3: devices of a group that hold the same parameters, a divisor of `data`
  int unit = 0;                       // zeropp: micro-batches in a unit; 0: another schedule
  bool recompute = false;             // whether every stage's residuals are computed again, right before its backward
};
std::string text(const Degrees& degrees);  // one line for tables: "1f1b v=2, pipe 4, data 2, ZeRO-1, 8 x 4"

// Limits of the search: only candidates with these values are considered; 0, -1 and empty allow all.
struct DegreesLimits {
  int pipe = 0, data = 0, tensor = 0, context = 0, chunks = 0, unit = 0, local = 0;  // as Degrees and Split have them
  int zero = -1, sequence = -1, by_block = -1, recompute = -1;                       // level; 0 or 1: without, with
  std::string schedule;                                                              // its name
  std::vector<DegreeAxis> order;                                                     // these axes in this order, others anywhere between
};
// Reads "pipe=8,zero=3,schedule=zeropp,order=data/pipe". Throws Error with the keys that exist.
DegreesLimits parse_degrees_limits(const std::string& text);

// The planner's options beside those of all planners (PlanOptions::degrees).
struct DegreesOptions {
  StateBytes states{};         // on a device, by what it trains in
  double parameter_bytes = 4;  // bytes that NodeCost::parameter_bytes counts for each parameter
  DegreesLimits only{};        // leaves out the candidates that are not asked for
  bool every = false;          // whether candidates that cannot be the best are simulated too, however long that takes
};

// A simulated candidate.
struct DegreesResult {
  Degrees degrees;                            // the candidate
  std::vector<std::vector<int>> stages = {};  // the nodes of each stage
  // Seconds of a step: what an actor computes on average, what it waits for others, and by how much collectives and transfers last longer
  // than the work that hides them. The sum of the three is `seconds`.
  double seconds = 0, compute = 0, bubble = 0, exposed = 0;
  double split_seconds = 0;             // of `exposed`, what an actor waits on average for collectives over its replicas' own devices
  std::vector<double> peak_bytes = {};  // by actor: on each of its devices
  double memory = 0;                    // on the fullest device: the largest of peak_bytes
  // Elements per step, in whole copies of its parameters, that the fullest actor's replicas gather, and that they reduce of gradients.
  double gathered = 0, reduced = 0;
  bool fits = true;  // whether `memory` is within the devices'
};

// All that the planner looked at, behind the plan that it chose.
struct DegreesPlan {
  // The simulated candidates of every family (schedule, level, by_block, recompute): those that fit first, the fastest first.
  std::vector<DegreesResult> results = {};
  bool late = false;   // whether the time was over before all were looked at
  int considered = 0;  // number of candidates; those that were not simulated cannot be faster than the fitting ones of their family
};

// Members of an axis, and how far apart they stand.
int size_along(const Degrees& degrees, DegreeAxis axis);
int stride_along(const Degrees& degrees, DegreeAxis axis);
std::string order_text(const Degrees& degrees);  // "pipe/data/tensor": the axes of more than one member
// The devices in an actor's group: replica after replica, in each the members of tensor next to each other.
std::vector<int> group_of(const Degrees& degrees, int actor);
// The devices beside one along an axis, that one among them.
std::vector<int> group_along(const Degrees& degrees, DegreeAxis axis, int device);

}  // namespace penstock
