// What is measured of each step, and the file that keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

struct StepMetrics {
  std::int64_t step = 0;                  // from 1
  double loss = 0;                        // mean, of text nats per token
  std::optional<double> validation_loss;  // when measured
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0, rate = 0;
  std::string counted = "tokens";        // what `rate` counts per second: tokens, or samples of a model that reads no text
  double bubble = 0;                     // 1 - busy / (actors * seconds)
  std::vector<std::int64_t> peak_bytes;  // per actor
};

std::string to_json(const StepMetrics& metrics);  // one line, no newline

// One JSON object per line and step.
class MetricsFile {
 public:
  // Keeps the lines of steps up to `last_step` and drops the rest: a resumed run writes those again. Throws Error.
  MetricsFile(std::string path, std::int64_t last_step);
  void append(const StepMetrics& metrics);

 private:
  std::string path_;
};

}  // namespace penstock
