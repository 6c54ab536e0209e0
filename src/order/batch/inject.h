// SPDX-License-Identifier: Apache-2.0
// In which order micro-batches that differ enter the pipeline: DynaPipe tries the orders of groups of like ones (2311.10418).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/numbers.h"
#include "batch/micro_batch_times.h"

namespace penstock {

// Groups of micro-batches, by index.
using MicroBatchGroups = std::vector<std::vector<std::size_t>>;

// Micro-batches of equal times and sizes, in the order in which they come first.
MicroBatchGroups groups_of_equals(const MicroBatches& work);
// At most k groups of like times (F, B): Lloyd's k-means from the points that are farthest from each other. Inside of a group micro-batches
// are shuffled by the seed. With no more than k micro-batches each is a group.
MicroBatchGroups groups_of_like(const MicroBatches& work, std::size_t k, std::uint64_t seed = 0);
// Returns how many groups DynaPipe makes of m micro-batches.
inline std::size_t usual_groups(std::size_t m) {
  return m > 20 ? 3 : 4;
}

struct Injection {
  std::vector<std::size_t> order;  // the micro-batch at each place
  Schedule schedule;               // the cyclic table, whose micro-batches are places
  TableTime time;
  bool capped = false;  // whether the cap had to hold micro-batches up
};

// The fastest of every order of the groups and of the order given, each as a cyclic table. Those that keep the cap by themselves are taken
// before those that are held up to keep it. At equal times the first counts. Throws Error for more than eight groups, and where a
// micro-batch is larger than the cap.
Injection inject(int actors, const MicroBatches& work, MicroBatchGroups groups, double cap = kInfinity, double latency = 0);

}  // namespace penstock
