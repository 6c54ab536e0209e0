// SPDX-License-Identifier: Apache-2.0
// Continues a text with a model, one token after the other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "devices/cluster.h"
#include "penstock/trace.h"

namespace penstock {

struct GenerationOptions {
  std::string prompt;         // an empty one counts as a newline
  std::int64_t tokens = 200;  // how many to add
  double temperature = 0.8;   // divides the logits; 0: always take the likeliest
  std::int64_t top_k = 40;    // draw among the so many likeliest; 0: among all
  std::int64_t seed = 0;
  double seconds = 0;  // stop after so many seconds; 0: no limit
};

// The index drawn from softmax(logits / temperature) over the top_k largest; `draw` is in [0, 1).
std::size_t sample(const std::vector<double>& logits, const GenerationOptions& options, double draw);

// Makes a cluster of one device that reads its data from the source.
using OneDevice = std::function<std::unique_ptr<Cluster>(std::shared_ptr<const DataSource>)>;

// The text that follows the prompt. The model sees at most its context. Throws Error (state that does not fit the model, a tokenizer that
// is not there).
std::string generate(const Config& config, const ModelRegistry& models, const StateSource& state, const GenerationOptions& options,
                     const OneDevice& one_device);

}  // namespace penstock
