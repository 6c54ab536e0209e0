// SPDX-License-Identifier: Apache-2.0
// A whole batch by DynaPipe (2311.10418): micro-batches, replicas, and a table for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch/cut_batch.h"
#include "batch/micro_batch_times.h"

namespace penstock {

struct BatchProblem {
  std::vector<SampleLengths> samples;  // padded
  std::vector<std::size_t> order;      // in which they are cut
  std::vector<RecomputeMode> modes;    // at least one
  BatchCutOptions cut;                 // one chunk; the limits follow from `available`
  double available = kInfinity;        // memory of a stage, in the modes' unit
  double latency = 0;                  // of a transfer, in the modes' unit of time
  std::uint64_t seed = 0;              // of the order inside of groups of like micro-batches
};

struct ReplicaPlan {
  std::vector<std::size_t> micro_batches;  // of the cut, in the order in which they enter: the table's micro-batches
  std::size_t mode = 0;
  Schedule schedule;  // "cyclic" or "1f1b"
  TableTime time;
};

struct BatchPlan {
  FittedCut fitted;
  std::vector<ReplicaPlan> replicas;  // a replica has no micro-batches where there are fewer than replicas
  double time = 0;                    // of the slowest replica
};

// Cuts the batch (fit_batch), divides the micro-batches among the replicas by their times (balance), and times for each replica the cyclic
// table, injected in the best order tried, and 1F1B, in every mode; the fastest that keeps the memory is taken, so the mode of the cut does
// not bind. A forward counts a third of a micro-batch's time. Throws Error as fit_batch does.
BatchPlan plan_batch(const BatchProblem& problem);

}  // namespace penstock
