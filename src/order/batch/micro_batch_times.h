// SPDX-License-Identifier: Apache-2.0
// When the micro-batches of a table run where each has its own time, the same on all stages of a chain.
#pragma once

#include <vector>

#include "penstock/schedule.h"
#include "penstock/table.h"

namespace penstock {

// By micro-batch: seconds, or any unit of time, on each stage; what its activations count there while they live. A backward that is cut in
// two takes half of its time in I and half in W.
struct MicroBatches {
  std::vector<double> forward, backward, size;

  std::size_t count() const { return forward.size(); }
};
// Throws Error unless there are as many of each, and one at least, all finite and not negative.
void check_micro_batches(const MicroBatches& work);

// Returns the costs as the simulator takes them: each micro-batch is a class of its own, and each transfer counts `latency` bytes.
TableCosts table_costs(int stages, const MicroBatches& work, double latency = 0);
// The links of a chain: what an actor sends leaves one after the other, to whomever it goes, at one byte in a unit of time.
Network one_lane_each(int actors);

// Takes a valid table of a chain in which actor s has stage s, and no more micro-batches than `work`. A transfer takes `latency`.
TableTime time_micro_batches(const Schedule& schedule, const MicroBatches& work, double latency = 0);

}  // namespace penstock
