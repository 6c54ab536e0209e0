// A whole batch by FlexSP (2412.01523, section 4): its micro-batches, and the groups of each.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/group_batch.h"

namespace penstock {

struct GroupedBatch {
  double milliseconds = 0;  // of all micro-batches, one after the other, at the sequences' real lengths
  std::vector<Grouping> micro_batches;
};

// Tries several numbers of micro-batches, from the fewest that the devices' memory could hold to four more than the first of which all fit,
// and takes the fastest. A micro-batch is a run of the descending lengths; its groups are found with lengths in buckets (16, or more
// while padding is much), as a search has fewer different sequences then. Throws Error as group_batch does.
GroupedBatch group_in_micro_batches(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options);

}  // namespace penstock
