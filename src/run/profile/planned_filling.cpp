// SPDX-License-Identifier: Apache-2.0
#include "profile/planned_filling.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "batch/stage_split.h"
#include "models/layers.h"
#include "penstock/error.h"

namespace penstock {

FillingSizes filling_sizes(const Config& config) {
  const auto frozen = config.model.numbers.find("frozen_stages"), layers = config.model.numbers.find("layers");
  if (frozen == config.model.numbers.end() || layers == config.model.numbers.end())
    throw Error(concat("model ", quote(config.model.name), " has no frozen stages whose cut could be planned"), {},
                "models that have: latent_diffusion");
  if (const auto found = config.model.numbers.find("backbones"); found != config.model.numbers.end() && found->second > 1)
    throw Error(concat("model.backbones is ", static_cast<int>(found->second), ", and the cut of one backbone is planned"), {},
                "--vary stage_layers=1+3,2+2 compares cuts that both have");
  return {frozen->second > 0 ? static_cast<int>(frozen->second) : 2, static_cast<int>(layers->second)};
}

FillingTimes stage_times(const Timeline& timeline, const FillingSizes& sizes) {
  FillingTimes out{.frozen = std::vector<double>(at(sizes.frozen)),
                   .forward = std::vector<double>(at(sizes.layers)),
                   .backward = std::vector<double>(at(sizes.layers))};
  for (const Activity& activity : timeline.activities) {
    if (!activity.action || activity.lane != Lane::compute) continue;
    const std::int32_t layer = activity.stage - sizes.frozen;
    double& time = layer < 0 ? out.frozen[at(activity.stage)] : (activity.kind == Kind::F ? out.forward : out.backward)[at(layer)];
    time += activity.end - activity.begin;
  }
  return out;
}

StageLayers best_cut(const FillingTimes& times, int stages, int microbatches) {
  StageSplitProblem problem{.layers = times.forward, .backward = times.backward, .stages = stages, .microbatches = microbatches};
  for (std::size_t i = 0; i < problem.layers.size(); ++i) problem.layers[i] += times.backward[i];
  std::vector<int> begins = split_stages(problem).begins;
  begins.push_back(static_cast<int>(problem.layers.size()));
  StageLayers out;
  for (std::size_t stage = 0; stage + 1 < begins.size(); ++stage) out.push_back(begins[stage + 1] - begins[stage]);
  return out;
}

StageLayers even_cut(const FillingTimes& times, int stages) {
  StageLayers out(at(stages));
  for (std::int64_t layer = 0; layer < std::ssize(times.forward); ++layer) ++out[at(spread(layer, std::ssize(times.forward), stages))];
  return out;
}

std::vector<StageLayers> neighbours(const StageLayers& cut) {
  std::vector<StageLayers> out;
  for (std::size_t from = 0; from < cut.size(); ++from)
    for (std::size_t to = 0; to < cut.size(); ++to) {
      if (from == to || cut[from] == 1) continue;
      StageLayers& next = out.emplace_back(cut);
      --next[from];
      ++next[to];
    }
  return out;
}

std::vector<double> frozen_shares(const FillingTimes& times, const StageLayers& cut) {
  const double trained =
      std::accumulate(times.forward.begin(), times.forward.end(), 0.0) + std::accumulate(times.backward.begin(), times.backward.end(), 0.0);
  const double forward = trained / 3 / static_cast<double>(cut.size());
  std::vector<double> out;
  for (const double frozen : times.frozen) out.push_back(std::max(frozen / forward, 1e-4));
  return out;
}

}  // namespace penstock
