// SPDX-License-Identifier: Apache-2.0
// A whole batch by InfiniPipe (Wang et al., 2509.21275): long samples in slices, short ones packed, in one table.
#pragma once

#include <cstdint>

#include "batch/searched_batch.h"

namespace penstock {

struct InfiniPipeOptions {
  std::int64_t context = 0;  // no sample is longer
  int slices = 1;            // into which one may be cut, at most
};

// Rows must be ragged. Samples are cut at the same bounds, in pieces of equal time, and short ones are packed into last pieces and into
// rows of their own (split_at), no longer than the longest piece; a row is a micro-batch, and its chunks are its slices. The table is
// sequence_schedule, most slices first. Two things differ from the paper, so that batches meet the same shapes again and slices are only
// made where that pays: bounds are those of the context, or of a half, a quarter, ... of it that the longest sample still fits in, in
// multiples of `round`; and samples are cut into 1, 2, 4, ... pieces, up to options.slices, of which the fastest table within the limit is
// taken. Of tables above the limit, sequences are divided into groups by their numbers of chunks, which run one after the other
// (group_by_chunks), where that keeps it. With groups or without, layers of some chunks are recomputed by InfiniPipe's plan
// (plan_checkpoints), as many of a stage as problem.layers; and where problem.recompute, whole stages of some chunks by R, as relieve()
// finds them. The fastest that keeps the limit is taken. Throws Error where none does.
PlannedBatch infinipipe_batch(const SearchedBatchProblem& problem, const InfiniPipeOptions& options);

}  // namespace penstock
