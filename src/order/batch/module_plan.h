// SPDX-License-Identifier: Apache-2.0
// A batch of texts with images by DIP: in which parts the images are encoded, and a table over the model's stages.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "batch/lengths.h"
#include "batch/modules.h"
#include "penstock/table.h"

namespace penstock {

// A stage's forward, in milliseconds, takes `part_fixed` + images / `images` for a part of images; `fixed` + n (s / `linear` + s^2 /
// `quadratic`) for n texts of s tokens.
struct ModuleCosts {
  double part_fixed = 0, images = 1;
  double fixed = 0, linear = 1, quadratic = 1;

  double part(std::int64_t count) const { return part_fixed + static_cast<double>(count) / images; }
  double text(const BatchShape& shape) const;
};

// The smallest part with nearly the best throughput (part_size), where a micro-batch has at most so many images.
std::int64_t part_of(const ModuleCosts& costs, std::int64_t most_images);

// The stages are those of each part, part by part, then those of the text; each module's go over all ranks once a round.
ModuleProblem module_problem(const std::vector<BatchShape>& microbatches, const ModuleCosts& costs, int ranks, int part_rounds,
                             int text_rounds);

// The table as a schedule of these stages: a micro-batch with fewer parts than another has no actions in the rest, which its shape says.
Schedule schedule_of(const ModuleProblem& problem, const ModuleTable& table);
// The stages and their edges that the schedule is of, backwards included; and which have nothing to do for which micro-batch.
StageShape shape_of(const ModuleProblem& problem);

// By micro-batch, what its shape's backward computes again (BatchShape::again): none of a micro-batch of which it is no layer.
std::vector<std::vector<int>> again_of(const ModuleProblem& problem, const ModuleTable& table);

// The costs of F, B, I and W, each micro-batch a class of its own: a stage's forward takes `forward` of the micro-batch, I and W as long,
// and B twice as long.
TableCosts costs_by_forward(std::int32_t stages, std::size_t microbatches,
                            const std::function<double(std::int32_t stage, std::int32_t microbatch)>& forward);

}  // namespace penstock
