// SPDX-License-Identifier: Apache-2.0
// Makes a picture with a model, taking noise away step by step.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "driver/generation.h"
#include "penstock/trace.h"

namespace penstock {

struct PictureOptions {
  std::int64_t label = 0;   // the class that it shows
  std::int64_t steps = 50;  // of taking noise away, at most as many as the model has levels
  double guidance = 2;      // how much it follows the class: 0 not at all, 1 as in training
  std::int64_t seed = 0;    // of the noise at the begin
};

struct Picture {
  std::int64_t size = 0;             // in both directions
  std::vector<std::uint8_t> pixels;  // rows from the top: red, green and blue of each pixel
};

// The level of noise after each of `steps` steps, from the model's highest before the first down to -1, none: steps + 1 numbers.
std::vector<std::int64_t> levels_of_steps(std::int64_t levels, std::int64_t steps);

// Throws Error: a model that makes no pictures, a class or a number of steps that it has not, state that does not fit it.
Picture make_picture(const Config& config, const ModelRegistry& models, const StateSource& state, const PictureOptions& options,
                     const OneDevice& one_device);

}  // namespace penstock
