// SPDX-License-Identifier: Apache-2.0
// The file of each step's measurements.
#pragma once

#include <cstdint>
#include <string>

#include "report/step_metrics.h"

namespace penstock {

std::string to_json(const StepMetrics& metrics);  // one line, no newline

// One JSON object per step and line, appended. No line is ever removed: a resumed run repeats the steps after its checkpoint, and of
// several lines for a step the last one counts.
class MetricsFile {
 public:
  // Cuts off an incomplete line that a crash left at the end. Throws Error.
  explicit MetricsFile(std::string path);
  void append(const StepMetrics& metrics);

 private:
  std::string path_;
};

}  // namespace penstock
