// Programs of training steps whose micro-batches have shapes of their own.
#pragma once

#include <map>
#include <vector>

#include "batch/lengths.h"
#include "config/compile.h"
#include "lower/classes.h"

namespace penstock {

// Makes a program for each batch. What a shape takes to be traced and cut is done once and kept.
class ShapePrograms {
 public:
  // `config` and `prepared` must outlive it; of the table only what it splits and recomputes matters.
  ShapePrograms(const Config& config, const Prepared& prepared) : config_(config), prepared_(prepared) {}

  // `microbatches` stand in the table's order; their samples follow on each other in the step's. Throws Error as compile() does.
  Program training(const std::vector<BatchShape>& microbatches, const Schedule& schedule);

 private:
  const Config& config_;
  const Prepared& prepared_;
  std::map<BatchShape, LowerInput> inputs_;
};

}  // namespace penstock
