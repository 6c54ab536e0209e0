// SPDX-License-Identifier: Apache-2.0
// Plans how many layers each chunk recomputes so that a stage's memory is kept: InfiniPipe's checkpoint plan (2509.21275, section V).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The memory of a chunk on a stage.
struct ChunkMemory {
  double full = 0;   // where the stage recomputes nothing
  double saved = 0;  // of it, what each recomputed layer saves
};

struct CheckpointProblem {
  int actors = 1;
  int layers = 1;                        // of all stages; a stage has layers / actors
  std::vector<ChunkMemory> memory = {};  // of each chunk, one sequence's after the other's
  double room = 0;                       // of a stage, for all chunks that live at once
  std::int64_t nodes = 100'000;          // of the search; beyond them the best so far counts
};

struct CheckpointPlan {
  bool feasible = false;
  int total = 0;               // layers, over all entries: the step grows by so many layers' forwards
  std::vector<int> per_chunk;  // count + actors - 1 entries: the k-th backward of stage i recomputes those of entry k + actors - 1 - i
  bool proven = false;         // no plan has a smaller total
};

// The plan with the least total for sequences of so many chunks in the order of chunk_schedule. Stages take equal entries at equal times,
// so that recomputing delays all of them at once. Throws Error for layers that stages cannot share equally, and for a chunk whose layers
// save more than it has.
CheckpointPlan plan_checkpoints(const CheckpointProblem& problem, const std::vector<int>& chunks);

struct CheckpointGroup {
  std::vector<std::size_t> sequences;  // those of most chunks first
  CheckpointPlan plan;
};
struct CheckpointGroups {
  double time = 0;  // sum of the groups' delay and total; infinite where there is no plan
  std::vector<CheckpointGroup> groups;
};
// Divides the sequences by their numbers of chunks into groups that run one after the other: each costs `delay`, the time in which the
// pipeline fills, and its plan's total; short sequences by themselves hold less memory. At equal times the fewest groups.
CheckpointGroups group_by_chunks(const CheckpointProblem& problem, const std::vector<int>& chunks, double delay);

}  // namespace penstock
