// SPDX-License-Identifier: Apache-2.0
// Runs whose samples are texts with images: each batch gets its own shapes, parts of images, table and program.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/module_plan.h"
#include "config/shape_programs.h"
#include "data/dataset.h"
#include "driver/batch_steps.h"

namespace penstock {

// Micro-batches are equally many samples each, in the order drawn; each is padded to its longest text, and has the images that are there.
// Where devices share micro-batches, all parts of one have as many images as the part with most, so that they have one shape.
// The planner makes a table over parts of them (batch/modules.h); where stages lie, and whether backwards are split, is as in the
// configured schedule, whose table evaluation runs. Above a limit of bytes parts and texts wait, or layers are computed again
// (batch/module_memory.h). With a planner that makes none (BatchPlannerInfo::given_table) all images of a
// micro-batch are one part, and the configured table runs.
class ModuleSteps {
 public:
  // All must outlive it. Throws Error where the model reads no images, or its stages do not go over all actors in whole rounds.
  ModuleSteps(const Config& config, const Prepared& prepared, const Dataset& data);
  // Throws Error as search_modules(), modules_in_room() and compile() do, and where the batch has no program below the memory limit.
  BatchStep step(const std::vector<std::int64_t>& samples);

 private:
  std::vector<BatchShape> shapes_of(const std::vector<std::int64_t>& samples) const;
  // The bytes that the classes of these shapes hold on each stage.
  std::vector<std::vector<ModuleMemory>> memory_of(const std::vector<BatchShape>& shapes, const Schedule& table);
  BatchStep lowered(const std::vector<std::int64_t>& samples, const std::vector<BatchShape>& shapes, const Schedule& table);
  Schedule given_table(const std::vector<BatchShape>& shapes) const;

  const Config& config_;
  const BatchPlannerInfo& planner_;
  const Prepared& prepared_;
  const Dataset& data_;
  ModuleCosts costs_;
  std::int64_t part_ = 1;
  int vision_stages_ = 0, text_stages_ = 0;
  bool folded_ = false;
  ShapePrograms programs_;
};

}  // namespace penstock
