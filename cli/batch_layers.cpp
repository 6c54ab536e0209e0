// SPDX-License-Identifier: Apache-2.0
// penstock batch layers: LayerPipe's balance of forwards, input gradients and weight gradients; stages: DiffusionPipe's partition.
#include "base/text.h"
#include "batch/layer_split.h"
#include "batch/stage_split.h"
#include "cli/batch.h"
#include "report/table.h"

namespace penstock {
namespace {

std::vector<double> times_of(const JsonNode& instance, const char* key, std::size_t layers) {
  const JsonNode list = required(instance, key);
  std::vector<double> out = figures(list);
  if (out.empty()) list.fail("is empty", "there is a time for each layer");
  if (layers > 0 && out.size() != layers)
    list.fail(concat("has ", out.size(), " times for ", layers, " layers"), "forward, input and weight have a time for each layer");
  return out;
}

BackwardSplit backward_of(const JsonNode& instance) {
  if (!is_given(instance, "backward")) return BackwardSplit::divided;
  const JsonNode node = instance.at("backward");
  const std::string word = node.text();
  if (word == "whole") return BackwardSplit::whole;
  if (word == "apart") return BackwardSplit::apart;
  if (word != "divided") node.fail(concat("is ", quote(word)), "whole, apart or divided");
  return BackwardSplit::divided;
}

// "F3", or "I3*0.4" of a divided input gradient; layers count from 0.
std::string text_of(const LayerPart& part) {
  const std::string name = concat("FIW"[static_cast<std::size_t>(part.work)], part.layer);
  return part.share == 1 ? name : concat(name, "*", fixed(part.share, 3));
}

BatchAnswer solve_layers(const JsonNode& instance) {
  LayerTimes times;
  times.forward = times_of(instance, "forward", 0);
  times.input = times_of(instance, "input", times.forward.size());
  times.weight = times_of(instance, "weight", times.forward.size());
  const LayerSplit split = split_layers(times, small_whole(instance, "processors"), backward_of(instance));
  nlohmann::ordered_json processors = nlohmann::ordered_json::array();
  for (const std::vector<LayerPart>& parts : split.processors) {
    processors.push_back(nlohmann::ordered_json::array());
    for (const LayerPart& part : parts) processors.back().push_back(text_of(part));
  }
  const double ratio = split.mean > 0 ? split.largest / split.mean : 1;
  return {{{"largest", exact(split.largest)}, {"mean", exact(split.mean)}, {"ratio", exact(ratio)}, {"processors", processors}}};
}

// A list of times, or one number for all of them; none where the key is not there.
std::vector<double> times_or_one(const JsonNode& instance, const char* key, std::size_t count) {
  if (!is_given(instance, key)) return {};
  const JsonNode node = instance.at(key);
  if (!node.value().is_array()) return std::vector<double>(count, figure(node));
  std::vector<double> out = figures(node);
  if (out.size() != count) node.fail(concat("has ", out.size(), " times, not ", count), "one for all, or one for each");
  return out;
}

BatchAnswer solve_stages(const JsonNode& instance) {
  constexpr std::size_t kMostLayers = 1024;
  StageSplitProblem problem;
  problem.layers = times_of(instance, "layers", 0);
  const std::size_t layers = problem.layers.size();
  if (layers > kMostLayers) instance.at("layers").fail(concat("has ", layers, " layers"), concat("up to ", kMostLayers));
  problem.links = times_or_one(instance, "links", layers - 1);
  problem.all_reduce = times_or_one(instance, "all_reduce", layers);
  problem.backward = times_or_one(instance, "backward", layers);
  problem.stages = small_whole(instance, "stages");
  problem.microbatches = small_whole(instance, "microbatches");
  const StageSplit split = split_stages(problem);
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < split.begins.size(); ++s) {
    stages.push_back(nlohmann::ordered_json::array());
    const int end = s + 1 < split.begins.size() ? split.begins[s + 1] : static_cast<int>(layers);
    for (int layer = split.begins[s]; layer < end; ++layer) stages.back().push_back(layer);
  }
  return {{{"time", exact(split.time)}, {"slowest", exact(split.slowest)}, {"exposed", exact(split.exposed)}, {"stages", stages}}};
}

}  // namespace

std::vector<BatchKind> layer_kinds() {
  return {{"layers",
           "forwards, input gradients and weight gradients of layers on processors in a line (LayerPipe)",
           {"forward", "input", "weight", "processors", "backward"},
           solve_layers},
          {"stages",
           "layers as stages of a pipeline, with links and the sum of gradients (DiffusionPipe)",
           {"layers", "links", "all_reduce", "backward", "stages", "microbatches"},
           solve_stages}};
}

}  // namespace penstock
