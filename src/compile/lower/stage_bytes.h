// SPDX-License-Identifier: Apache-2.0
// The bytes of a micro-batch's activations on each stage.
#pragma once

#include <vector>

#include "lower/input.h"

namespace penstock {

struct StageBytes {
  double live = 0;  // from F to the backward: what this reads that neither stays between micro-batches nor comes from a later stage's
  double kept = 0;  // of that, what a light F leaves, and its R reads; where the stage has no R, all
  double sent = 0;  // what F makes for other stages
};
// By stage, of a micro-batch of the input's first class. What tasks need only while they run is not counted.
std::vector<StageBytes> stage_bytes(const LowerInput& input);

}  // namespace penstock
