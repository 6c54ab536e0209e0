// SPDX-License-Identifier: Apache-2.0
// The measurements of one step of a training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

// Metrics of a step whose batch has a program of its own.
struct BatchMetrics {
  double seconds = 0;                          // that planning, lowering and proving it took, maybe while other steps ran
  double waited = 0;                           // seconds that the step waited for its program to be made and loaded
  double predicted = 0;                        // seconds that it should take; 0: nothing is predicted
  std::int64_t microbatches = 0, classes = 0;  // of the batch, and of how many shapes
  std::int64_t new_classes = 0;                // shapes of which no earlier batch has left tasks
  std::int64_t slices = 0;                     // the most into which a micro-batch is cut; 0: the planner cuts none
  std::int64_t layers_again = 0;               // layers of stages that its backwards compute again, over all micro-batches and slices
  std::string recompute = {};                  // what its backwards compute again; "": the planner does not choose it
};

struct StepMetrics {
  std::int64_t step = 0;                  // from 1
  double loss = 0;                        // mean over the batch; for text in nats per token
  std::optional<double> validation_loss;  // when measured
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0, rate = 0;
  double seen = 0;                       // tokens, or samples, since the run's first step
  std::string counted = "tokens";        // the unit of `rate`, per second: tokens, or samples for a model that reads no text
  std::optional<BatchMetrics> planned;   // where each batch has a program of its own
  double flops = 0;                      // floating-point operations per second, of all devices together
  double bubble = 0;                     // 1 - busy / (actors * seconds); NaN: not known
  std::vector<std::int64_t> peak_bytes;  // per actor
};

}  // namespace penstock
