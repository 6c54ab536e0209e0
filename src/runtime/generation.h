// Continuing a text with a model, one byte after the other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/trace.h"
#include "runtime/cluster.h"
#include "runtime/config.h"

namespace penstock {

struct GenerationOptions {
  std::int64_t tokens = 200;  // to add
  double temperature = 0.8;   // 0: always the likeliest
  std::int64_t top_k = 40;    // choose among so many; 0: all
  std::int64_t seed = 0;
  double seconds = 0;  // after so many no more are added; 0: no limit
};

// The index drawn from softmax(logits / temperature) over the top_k largest; `draw` in [0, 1).
std::size_t sample(const std::vector<double>& logits, const GenerationOptions& options, double draw);

// Makes a cluster of one device that reads its data from there.
using OneDevice = std::function<std::unique_ptr<Cluster>(std::shared_ptr<const DataSource>)>;

// Returns what follows `prompt`. The model sees at most its context. An empty prompt is a newline. Throws Error (state that does
// not fit the model).
std::string generate(const Config& config, const ModelRegistry& models, const StateSource& state, std::string_view prompt,
                     const GenerationOptions& options, const OneDevice& one_device);

}  // namespace penstock
