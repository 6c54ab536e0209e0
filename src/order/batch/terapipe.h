// SPDX-License-Identifier: Apache-2.0
// A whole batch by TeraPipe (Li et al., 2102.07988, section 3): groups of sequences, each in slices of its own.
#pragma once

#include "batch/searched_batch.h"

namespace penstock {

// Rows must be padded. slice_sequences divides as many sequences as there are samples, each as long as the longest, into groups and cuts
// each group into `slices` slices at most, by the time of forward and backward on the stage that takes longest. A group is a micro-batch;
// the longest samples are in the first, and a group ends with its own longest. The table is sequence_schedule, of all groups at once or of
// one after the other, whichever is faster within the limit. Throws Error where neither keeps it.
PlannedBatch terapipe_batch(const SearchedBatchProblem& problem, int slices);

}  // namespace penstock
