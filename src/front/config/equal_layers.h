// SPDX-License-Identifier: Apache-2.0
// Models of many equal layers, for planning: what a layer costs does not depend on how many there are, so few of them are traced.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "penstock/plan.h"

namespace penstock {

struct EqualLayers {
  Config few = {};                      // the configuration with model.layers = 3
  std::vector<std::string> names = {};  // all nodes of the whole model, in the order of its stages
  // The nodes of `few` by number: first [0, begin), then [begin, begin + period) again and again, then the rest.
  std::size_t begin = 0, period = 0;
  std::vector<std::string> few_names = {};
};
// None: the model has no more than few layers, or its nodes' names, numbers left out, do not repeat so.
std::optional<EqualLayers> equal_layers(const Config& config, const ModelRegistry& models);

// The whole model's graph, from that of few layers: each node's costs, and edges from as far before it. What clips and updates takes as
// long for each parameter.
PlanGraph expanded(const EqualLayers& layers, const PlanGraph& few);

}  // namespace penstock
