// SPDX-License-Identifier: Apache-2.0
// The layers of stages, of which backwards may compute some again.
#pragma once

#include <string>
#include <vector>

#include "penstock/graph.h"
#include "stage/stages.h"

namespace penstock {

// How many layers each stage has: modules that are one of a numbered list. An op is in the layer that its origin names up to its first
// number ("h.3" of "h.3.attn"), and what has no number, as embeddings and heads, in none. The loop's ops have stages.
std::vector<int> layer_counts(const Graph& step, const IdVector<StageId, std::string>& stages);

// The step in which the backward of each stage computes its first so many layers again (kRecompute). What a layer gives to others stays
// kept, so that each is computed again of its own inputs, when the backward has come to it. `again`: by stage.
Graph mark_layers(StagedStep staged, const std::vector<int>& again);

}  // namespace penstock
