// SPDX-License-Identifier: Apache-2.0
// Which layers of a trained backbone are a stage, and what the frozen stages in front take over these: DiffusionPipe's planner (2405.01248,
// section 4; batch/stage_split.h), where a predicted step says what layers take.
#pragma once

#include <vector>

#include "config/config.h"
#include "penstock/timeline.h"

namespace penstock {

using StageLayers = std::vector<int>;  // how many layers each trained stage has

struct FillingSizes {
  int frozen = 1;  // stages
  int layers = 1;
};
// Throws Error for a model that has not the numbers "frozen_stages" (0 stands for 2) and "layers", and for
// one of two backbones.
FillingSizes filling_sizes(const Config& config);

// Seconds of all micro-batches of a step.
struct FillingTimes {
  std::vector<double> frozen;             // of each frozen stage forward
  std::vector<double> forward, backward;  // of each layer
};
// By the timeline of a step that has a stage for each frozen stage, and behind them for each layer.
FillingTimes stage_times(const Timeline& timeline, const FillingSizes& sizes);

// DiffusionPipe's cut for so many stages, links left out. Throws Error where there are more stages than layers.
StageLayers best_cut(const FillingTimes& times, int stages, int microbatches);
// Cuts the layers into stages as a model does that is told nothing.
StageLayers even_cut(const FillingTimes& times, int stages);
// All cuts in which one stage has a layer fewer and another one more.
std::vector<StageLayers> neighbours(const StageLayers& cut);
// For each frozen stage: its forward over a trained stage's, as pipeline.frozen has it. A trained stage takes three forwards on average, as
// a table that is filled counts.
std::vector<double> frozen_shares(const FillingTimes& times, const StageLayers& cut);

}  // namespace penstock
