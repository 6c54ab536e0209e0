// SPDX-License-Identifier: Apache-2.0
// Stages of an exported graph, by the paths of the modules that begin them.
#pragma once

#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

// Marks the ops of a joint graph, backward ones as their forward ops, with the stages "0", "1", ...: each path begins the next stage where
// the first op of that module, or of one inside of it, stands. Ops stand in the order in which the module ran, so no stage reads a later
// one, whatever the paths. Throws Error: a path that no op comes from, naming the nearest; paths out of that order.
// `order`: module_paths() of another graph of the module, for which the paths were chosen. A module of which this graph has no op, as of a
// dropout where a module is evaluated, begins its stage where the next one in that order does. A stage of which nothing is left gets an op
// that changes nothing, so that there are as many as ever. `result` is the output that lies behind all stages.
void mark_stages(Graph& graph, const std::vector<std::string>& begins, const std::vector<std::string>& order = {}, std::size_t result = 0);

// The paths of modules that begin the stages 1, 2, ... of so many, cut where the stages' forward work is most nearly equal. They are
// members of a list of blocks ("model.layers.7") where there are enough, else any modules. Throws Error where there are fewer modules than
// stages.
std::vector<std::string> even_stages(const Graph& graph, int stages);

// The paths of modules that ops come from, each once, in the order in which they ran, those that hold them in front.
std::vector<std::string> module_paths(const Graph& graph);

}  // namespace penstock
