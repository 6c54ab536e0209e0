// SPDX-License-Identifier: Apache-2.0
// DiffusionPipe's partition of a backbone (Tian et al., 2405.01248, section 4): consecutive layers as stages of a pipeline.
#pragma once

#include <vector>

namespace penstock {

// Seconds, or any unit, of one micro-batch. Finite, not negative.
struct StageSplitProblem {
  std::vector<double> layers;        // forward and backward of each; at least one
  std::vector<double> links{};       // sending what the layer gives to the next, and its gradient back: one fewer than layers; empty: 0
  std::vector<double> all_reduce{};  // of each layer's gradients, once a step; empty: 0
  std::vector<double> backward{};    // of a layer's time, its backward; empty: two thirds
  int stages = 1;                    // from 1 to as many as there are layers
  int microbatches = 1;
};
struct StageSplit {
  std::vector<int> begins;  // the first layer of each stage
  double slowest = 0;       // the longest stage or link between two stages
  double exposed = 0;       // the longest that an all-reduce goes on behind the backwards of the stages before it
  double time = 0;          // (microbatches + 2 stages - 2) slowest + exposed
};
// The split of least `time`. A stage's gradients are summed while the stages before it go back with the last micro-batch: of its all-reduce
// what lasts longer than these backwards is exposed. Throws Error for lists of other lengths, and numbers that are none of these.
StageSplit split_stages(const StageSplitProblem& problem);

}  // namespace penstock
