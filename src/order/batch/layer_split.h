// SPDX-License-Identifier: Apache-2.0
// LayerPipe's balance (2108.06629): layers' forwards, input gradients and weight gradients on processors of their own.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// Seconds, or any unit, by layer. The first layer of a model needs no input gradient: 0.
struct LayerTimes {
  std::vector<double> forward, input, weight;
};
// The ways in which a layer's backward may be divided between two processors: not at all; with its weight gradient away from its input
// gradient; or also with the input gradient divided between two neighbours.
enum class BackwardSplit : std::uint8_t { whole, apart, divided };

enum class LayerWork : std::uint8_t { forward, input, weight };
struct LayerPart {
  LayerWork work = LayerWork::forward;
  int layer = 0;
  double share = 1;  // of the work
};
struct LayerSplit {
  std::vector<std::vector<LayerPart>> processors;
  double largest = 0, mean = 0;  // load of a processor
};
// The split with the smallest largest load in which processors have consecutive work: forwards from the first layer to the last, then
// backwards from the last to the first, a layer's two gradients in either order. Within 1e-9 of the least. All lists have an entry for
// each layer, at least one.
LayerSplit split_layers(const LayerTimes& times, int processors, BackwardSplit backward);

}  // namespace penstock
