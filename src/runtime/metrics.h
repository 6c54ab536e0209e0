// The file that keeps what is measured of each step.
#pragma once

#include <cstdint>
#include <string>

#include "report/step_metrics.h"

namespace penstock {

std::string to_json(const StepMetrics& metrics);  // one line, no newline

// One JSON object per line and step, appended. No line is ever removed: a resumed run repeats the steps after its checkpoint, and of
// several lines of a step the last one counts.
class MetricsFile {
 public:
  // A part of a line that a crash left at the end is cut off. Throws Error.
  explicit MetricsFile(std::string path);
  void append(const StepMetrics& metrics);

 private:
  std::string path_;
};

}  // namespace penstock
