// penstock batch modules, segments: DIP's algorithms.
#include <algorithm>

#include "batch/modules.h"
#include "cli/batch.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// "images": samples of the first module in each micro-batch, in parts of at most "part" (left out: whole). A sample takes 1.
ModuleProblem module_problem_of(const JsonNode& instance) {
  ModuleProblem problem{.ranks = small_whole(instance, "actors"), .micro_batches = {}, .most_live = 0};
  if (is_given(instance, "most_live")) problem.most_live = small_whole(instance, "most_live");
  const double backbone = figure(required(instance, "backbone"));
  constexpr std::int64_t kMost = 1000;
  required(instance, "images").each_element([&](const JsonNode& node) {
    const std::int64_t images = node.whole(0, kMost);
    const std::int64_t part = whole_or(instance, "part", 1, std::max<std::int64_t>(images, 1));
    ModuleMicroBatch& micro_batch = problem.micro_batches.emplace_back();
    micro_batch.backbone = backbone;
    for (const std::int64_t size : even_parts(images, part)) micro_batch.parts.push_back(static_cast<double>(size));
  });
  return problem;
}

BatchAnswer solve_modules(const JsonNode& instance) {
  const ModuleResult best =
      search_modules(module_problem_of(instance), {.seed = static_cast<std::uint64_t>(whole_or(instance, "seed", 0, 0))});
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const std::vector<ModuleRun>& rank : best.table.ranks) {
    nlohmann::ordered_json& runs = ranks.emplace_back(nlohmann::ordered_json::array());
    for (const ModuleRun& run : rank) runs.push_back(concat(run.segment, run.backward ? "B" : "F"));
  }
  return {{{"makespan", exact(best.table.makespan)}, {"lower_bound", exact(best.lower_bound)}, {"proven", best.proven}, {"ranks", ranks}}};
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

}  // namespace

std::vector<BatchKind> dip_kinds() {
  return {{"modules",
           "the order of the parts and backbones of a model of several modules (DIP)",
           {"actors", "images", "part", "backbone", "most_live", "seed"},
           solve_modules},
          {"segments", "into how many segments each module is cut (DIP)", {"times"}, solve_segments},
          {"part-size", "the smallest number of samples with nearly the best throughput (DIP)", {"sizes", "throughputs"}, solve_part_size}};
}

}  // namespace penstock
