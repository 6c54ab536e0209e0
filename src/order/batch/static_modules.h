// SPDX-License-Identifier: Apache-2.0
// The best table that is the same for every batch, as a measure of what planning each batch gains.
#pragma once

#include <string>
#include <vector>

#include "batch/modules.h"

namespace penstock {

struct StaticTable {
  std::string name;           // of the schedule, with its options and chunks
  std::vector<double> times;  // of each batch

  double total() const;
};

// The table with the least total: of all named schedules with all their options, and of the one searched for the mean batch (as many
// micro-batches of the mean images and texts); each with the encoder and the text on stages over all ranks, and with half of the ranks for
// each. All batches have the same ranks, number of micro-batches and rounds, which are 1; each micro-batch's images are one part. Throws
// Error otherwise.
StaticTable best_static_table(const std::vector<ModuleProblem>& batches, std::uint64_t seed);

}  // namespace penstock
