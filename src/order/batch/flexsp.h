// SPDX-License-Identifier: Apache-2.0
// A whole batch by FlexSP (2412.01523, section 4): its micro-batches, and the groups of each.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/group_batch.h"
#include "batch/searched_batch.h"

namespace penstock {

struct GroupedBatch {
  double milliseconds = 0;  // of all micro-batches, one after the other, at the sequences' real lengths
  std::vector<Grouping> micro_batches;
};

// Tries several numbers of micro-batches, from the fewest that the devices' memory could hold to four more than the first of which all fit,
// and takes the fastest. A micro-batch is a run of the descending lengths; its groups are found with lengths in buckets (16, or more
// while padding is much), as a search has fewer different sequences then. Throws Error as group_batch does.
GroupedBatch group_in_micro_batches(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options);

struct FlexspOptions {
  std::int64_t context = 0;  // no sample is longer
  int devices = 1;           // of an actor: a power of two
  // By the stage that sends most, in a group's collectives: bytes for each token, and how many there are.
  double sent = 0, messages = 0;
  std::map<int, double> bandwidth =
      {};  // of a device of a group of this degree, in bytes per unit of time; else that of the network's link
};

// Rows must be ragged: the sequences of a group are one, of which each of its devices has a part. A micro-batch of the plan is a group (its
// shape's degree); those of FlexSP's micro-batch follow on each other and take all devices of an actor between them, and the table is 1f1b,
// each action once for each of them. In time the slowest of them counts (BatchLoad::beside). Numbers of micro-batches that suit the
// pipeline are tried beside those of group_in_micro_batches; the fastest table within the limit is taken. Throws Error where none keeps it.
PlannedBatch flexsp_batch(const SearchedBatchProblem& problem, const FlexspOptions& options);

}  // namespace penstock
