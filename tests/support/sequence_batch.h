// SPDX-License-Identifier: Apache-2.0
// A batch of sequences for the planners that share rows among them.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/searched_batch.h"

namespace penstock::test {

// Ragged rows of multiples of 8 tokens, one stage for each actor; every stage takes what the formula says.
inline SearchedBatchProblem problem_of(const std::vector<std::int64_t>& lengths, int actors, double fixed = 0) {
  SearchedBatchProblem out{.samples = {},
                           .order = {},
                           .ragged = true,
                           .round = 8,
                           .actors = actors,
                           .costs = stage_costs({.fixed = fixed, .linear = 32, .quadratic = 4096}, actors)};
  for (const std::int64_t length : lengths) out.samples.push_back({length, 0});
  return out;
}

}  // namespace penstock::test
