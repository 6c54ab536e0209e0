// SPDX-License-Identifier: Apache-2.0
// Reading what instances of several kinds have: samples, their costs, micro-batches.
#pragma once

#include <cstddef>
#include <vector>

#include "batch/batch_costs.h"
#include "batch/micro_batch_times.h"
#include "cli/batch.h"

namespace penstock {

struct ReadLengths {
  std::vector<SampleLengths> samples;  // not padded
  bool decoder = false;
};
// "lengths": [9, 7], or "pairs": [[9, 2], [7, 3]].
ReadLengths read_lengths(const JsonNode& instance);
// "order": a permutation, or "tour"; left out: the longest first.
std::vector<std::size_t> read_order(const JsonNode& instance, const std::vector<SampleLengths>& samples);
// "fixed", "linear", "quadratic", "stored", "peak".
CostFormula read_formula(const JsonNode& node);
// "forward", "backward", "sizes". Backwards take twice the forwards, and every micro-batch counts 1, unless said.
MicroBatches read_micro_batches(const JsonNode& instance);

}  // namespace penstock
