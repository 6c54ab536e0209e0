// SPDX-License-Identifier: Apache-2.0
#include "batch/module_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace penstock {
namespace {

std::int32_t most_parts(const ModuleProblem& problem) {
  std::size_t most = 0;
  for (const ModuleMicroBatch& micro_batch : problem.micro_batches) most = std::max(most, micro_batch.parts.size());
  return static_cast<std::int32_t>(most);
}

// Which micro-batch's part (or, behind the last of its parts, text) each segment is, and its first stage.
struct SegmentStages {
  std::int32_t micro_batch = 0, first = 0;
};
std::vector<SegmentStages> stages_of(const ModuleProblem& problem) {
  std::vector<SegmentStages> out;
  const std::int32_t in_part = problem.ranks * problem.part_rounds;
  for (std::int32_t m = 0; m < std::ssize(problem.micro_batches); ++m) {
    for (std::int32_t part = 0; part < std::ssize(problem.micro_batches[at(m)].parts); ++part) out.push_back({m, part * in_part});
    out.push_back({m, most_parts(problem) * in_part});
  }
  return out;
}

}  // namespace

double ModuleCosts::text(const BatchShape& shape) const {
  const auto n = static_cast<double>(shape.samples), s = static_cast<double>(shape.input);
  return fixed + n * (s / linear + s * s / quadratic);
}

std::int64_t part_of(const ModuleCosts& costs, std::int64_t most_images) {
  std::vector<std::int64_t> sizes;
  std::vector<double> throughputs;
  for (std::int64_t size = 1; size <= std::max<std::int64_t>(most_images, 1); ++size) {
    sizes.push_back(size);
    throughputs.push_back(static_cast<double>(size) / costs.part(size));
  }
  return part_size(sizes, throughputs);
}

ModuleProblem module_problem(const std::vector<BatchShape>& microbatches, const ModuleCosts& costs, int ranks, int part_rounds,
                             int text_rounds) {
  ModuleProblem out{.ranks = ranks, .micro_batches = {}, .part_rounds = part_rounds, .backbone_rounds = text_rounds};
  for (const BatchShape& shape : microbatches) {
    ModuleMicroBatch& micro_batch = out.micro_batches.emplace_back();
    for (const std::int64_t part : even_parts(shape.images, shape.part)) micro_batch.parts.push_back(costs.part(part));
    micro_batch.backbone = costs.text(shape);
  }
  return out;
}

Schedule schedule_of(const ModuleProblem& problem, const ModuleTable& table) {
  const std::vector<SegmentStages> segments = stages_of(problem);
  Schedule out{.name = "dip", .actors = std::vector<std::vector<Action>>(table.ranks.size()), .cells = {}};
  for (std::int32_t rank = 0; rank < std::ssize(table.ranks); ++rank)
    for (const ModuleRun& run : table.ranks[at(rank)]) {
      const auto& [micro_batch, first] = segments[at(run.segment)];
      out.actors[at(rank)].push_back({first + run.stage, run.kind, micro_batch});
    }
  return out;
}

StageShape shape_of(const ModuleProblem& problem) {
  const std::int32_t parts = most_parts(problem), in_part = problem.ranks * problem.part_rounds;
  const std::int32_t text = parts * in_part, stages = text + problem.ranks * problem.backbone_rounds;
  StageShape out = chain(stages);
  for (std::int32_t part = 0; part < parts; ++part) out.predecessors[at(part * in_part)].clear();
  out.predecessors[at(text)].clear();
  for (std::int32_t part = 1; part <= parts; ++part) out.predecessors[at(text)].push_back(part * in_part - 1);
  out.idle.assign(at(stages), std::vector<bool>(problem.micro_batches.size(), false));
  for (std::size_t m = 0; m < problem.micro_batches.size(); ++m)
    for (std::int32_t stage = static_cast<std::int32_t>(problem.micro_batches[m].parts.size()) * in_part; stage < text; ++stage)
      out.idle[at(stage)][m] = true;
  return out;
}

std::vector<std::vector<int>> again_of(const ModuleProblem& problem, const ModuleTable& table) {
  std::vector<std::vector<int>> out(problem.micro_batches.size());
  if (table.again.empty()) return out;
  for (std::size_t m = 0, segment = 0; m < out.size(); ++m) {
    for (const std::size_t end = segment + problem.micro_batches[m].parts.size(); segment <= end; ++segment)
      out[m].insert(out[m].end(), table.again[segment].begin(), table.again[segment].end());
    if (std::ranges::all_of(out[m], [](int layers) { return layers == 0; })) out[m].clear();
  }
  return out;
}

TableCosts costs_by_forward(std::int32_t stages, std::size_t microbatches,
                            const std::function<double(std::int32_t stage, std::int32_t microbatch)>& forward) {
  TableCosts out;
  for (std::int32_t m = 0; m < static_cast<std::int32_t>(microbatches); ++m) {
    out.first.push_back(m * stages);
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      StageCosts& of = out.stages.emplace_back();
      of.of(Kind::F) = of.of(Kind::I) = of.of(Kind::W) = forward(stage, m);
      of.of(Kind::B) = 2 * of.of(Kind::F);
    }
  }
  return out;
}

}  // namespace penstock
