// SPDX-License-Identifier: Apache-2.0
// penstock batch modules, segments: DIP's algorithms.
#include <algorithm>

#include "batch/module_memory.h"
#include "batch/module_plan.h"
#include "batch/static_modules.h"
#include "cli/batch.h"

namespace penstock {
namespace {

// Each number in the list of images is a micro-batch, in parts of at most "part" (left out: whole). An image takes 1 in each round.
void add_micro_batches(ModuleProblem& problem, const JsonNode& images_of, const JsonNode& instance) {
  const double backbone = figure(required(instance, "backbone"));
  constexpr std::int64_t kMost = 1000;
  images_of.each_element([&](const JsonNode& node) {
    const std::int64_t images = node.whole(0, kMost);
    const std::int64_t part = whole_or(instance, "part", 1, std::max<std::int64_t>(images, 1));
    ModuleMicroBatch& micro_batch = problem.micro_batches.emplace_back();
    micro_batch.backbone = backbone;
    for (const std::int64_t size : even_parts(images, part)) micro_batch.parts.push_back(static_cast<double>(size));
  });
}

// A stage holds "full" for each 1 that its forward takes; of it each of its "layers" saves "saved_per_layer" that is computed again.
void add_memory(ModuleProblem& problem, const JsonNode& instance) {
  problem.room = figure(instance.at("room"));
  const double full = figure_or(instance, "full", 1), saved = figure_or(instance, "saved_per_layer", 0);
  const int layers = small_whole_or(instance, "layers", 1);
  if (saved * layers > full) instance.fail("saves more than there is", "give \"full\", and what of it each of \"layers\" saves");
  const auto add = [&](double time, int rounds) {
    problem.memory.emplace_back(at(problem.ranks * rounds), ModuleMemory{time * full, time * saved, layers});
  };
  for (const ModuleMicroBatch& micro_batch : problem.micro_batches) {
    for (const double time : micro_batch.parts) add(time, problem.part_rounds);
    add(micro_batch.backbone, problem.backbone_rounds);
  }
}

// "images": samples of the first module in each micro-batch; "part_rounds", "backbone_rounds": segments of each module.
ModuleProblem module_problem_of(const JsonNode& instance) {
  ModuleProblem problem{.ranks = small_whole(instance, "actors"), .micro_batches = {}};
  problem.most_live = small_whole_or(instance, "most_live", problem.most_live);
  problem.part_rounds = small_whole_or(instance, "part_rounds", problem.part_rounds);
  problem.backbone_rounds = small_whole_or(instance, "backbone_rounds", problem.backbone_rounds);
  problem.folded = flag(instance, "folded");
  problem.split = flag(instance, "split");
  add_micro_batches(problem, required(instance, "images"), instance);
  return problem;
}

BatchAnswer solve_modules(const JsonNode& instance) {
  ModuleProblem problem = module_problem_of(instance);
  const ModuleSearchOptions options{.seed = seed_of(instance)};
  ModuleResult best = search_modules(problem, options);
  if (is_given(instance, "room")) {
    add_memory(problem, instance);
    best = modules_in_room(problem, best, options);
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const std::vector<ModuleRun>& rank : best.table.ranks) {
    nlohmann::ordered_json& runs = ranks.emplace_back(nlohmann::ordered_json::array());
    for (const ModuleRun& run : rank) runs.push_back(concat(run.segment, name(run.kind)));
  }
  nlohmann::ordered_json answer = {
      {"makespan", exact(best.table.makespan)}, {"lower_bound", exact(best.lower_bound)}, {"proven", best.proven}, {"ranks", ranks}};
  if (!problem.memory.empty()) answer["held"] = exact(most_held(problem, best.table));
  if (!best.table.again.empty()) answer["again"] = best.table.again;
  return {answer};
}

BatchAnswer solve_segments(const JsonNode& instance) {
  std::vector<double> times;
  required(instance, "times").each_element([&](const JsonNode& node) { times.push_back(node.positive()); });
  if (times.empty()) instance.at("times").fail("is empty");
  return {{{"segments", segment_counts(times)}}};
}

BatchAnswer solve_part_size(const JsonNode& instance) {
  const std::vector<std::int64_t> sizes = wholes(required(instance, "sizes"), 1);
  const JsonNode list = required(instance, "throughputs");
  const std::vector<double> throughputs = figures(list);
  if (sizes.size() != throughputs.size()) list.fail(concat("has ", throughputs.size(), " entries for ", sizes.size(), " sizes"));
  if (!std::is_sorted(sizes.begin(), sizes.end())) instance.at("sizes").fail("must ascend");
  return {{{"size", part_size(sizes, throughputs)}}};
}

// "batches": lists of images by micro-batch, all as long; the best table that is the same for all of them.
BatchAnswer solve_static_modules(const JsonNode& instance) {
  std::vector<ModuleProblem> batches;
  required(instance, "batches").each_element([&](const JsonNode& node) {
    ModuleProblem& problem = batches.emplace_back(ModuleProblem{.ranks = small_whole(instance, "actors"), .micro_batches = {}});
    add_micro_batches(problem, node, instance);
  });
  const StaticTable best = best_static_table(batches, seed_of(instance));
  return {{{"table", best.name}, {"total", exact(best.total())}, {"times", exact(best.times)}}};
}

}  // namespace

std::vector<BatchKind> dip_kinds() {
  return {{"modules",
           "the order of the parts and backbones of a model of several modules (DIP)",
           {"actors", "images", "part", "backbone", "most_live", "part_rounds", "backbone_rounds", "folded", "split", "room", "full",
            "saved_per_layer", "layers", "seed"},
           solve_modules},
          {"static-modules",
           "the best table that is the same for several such batches",
           {"actors", "batches", "backbone", "seed"},
           solve_static_modules},
          {"segments", "into how many segments each module is cut (DIP)", {"times"}, solve_segments},
          {"part-size", "the smallest number of samples with nearly the best throughput (DIP)", {"sizes", "throughputs"}, solve_part_size}};
}

}  // namespace penstock
