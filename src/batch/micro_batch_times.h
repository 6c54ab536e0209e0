// When the micro-batches of a table run where each has its own time: the simulator's tables (penstock/table.h) have one time per stage.
#pragma once

#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// By micro-batch: seconds, or any unit of time, on each stage; what its activations count there while they live.
struct MicroBatches {
  std::vector<double> forward, backward, size;

  std::size_t count() const { return forward.size(); }
};
// Throws Error unless there are as many of each, and one at least, all finite and not negative.
void check_micro_batches(const MicroBatches& work);

struct MicroBatchTime {
  double makespan = 0;
  std::vector<double> peak_live;  // by actor: sizes that live at once, from the start of F to the end of B
};

// Takes a valid table of F and B in which actor s has stage s, in a chain, and no more micro-batches than `work`. Every action begins as
// early as the row and what it needs allow. What an actor sends takes `latency`, one after the other in the order of its row.
MicroBatchTime time_micro_batches(const Schedule& schedule, const MicroBatches& work, double latency = 0);

}  // namespace penstock
