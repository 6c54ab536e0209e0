// The measurements of one step of a training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

struct StepMetrics {
  std::int64_t step = 0;                  // from 1
  double loss = 0;                        // mean over the batch; for text in nats per token
  std::optional<double> validation_loss;  // when measured
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0, rate = 0;
  std::string counted = "tokens";        // the unit of `rate`, per second: tokens, or samples for a model that reads no text
  double planning = 0;                   // seconds until the batch had its program, before the step; 0: all have one
  double bubble = 0;                     // 1 - busy / (actors * seconds)
  std::vector<std::int64_t> peak_bytes;  // per actor
};

}  // namespace penstock
