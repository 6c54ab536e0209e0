// Runs whose samples have lengths of their own: each batch gets its own micro-batches, order and program.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/shape_programs.h"
#include "data/dataset.h"
#include "penstock/program.h"

namespace penstock {

// A batch as it is run.
struct BatchStep {
  std::vector<std::int64_t> samples;  // in the order of the program's rows
  std::shared_ptr<const Program> program;
};

// Plans batches as [batch] of the configuration says: batch/plan_batch.h.
class BatchSteps {
 public:
  // All must outlive it. Throws Error where the configuration asks for more than one device for each actor, or more stages than actors.
  BatchSteps(const Config& config, const Prepared& prepared, const Dataset& data);
  // Throws Error where a sample fits into no micro-batch, and as compile() does.
  BatchStep step(const std::vector<std::int64_t>& samples);

 private:
  const Config& config_;
  const Dataset& data_;
  ShapePrograms programs_;
};

}  // namespace penstock
