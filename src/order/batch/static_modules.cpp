// SPDX-License-Identifier: Apache-2.0
#include "batch/static_modules.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "batch/module_plan.h"
#include "penstock/error.h"
#include "penstock/search.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

// The stages of both modules on the ranks: the encoder's first, then the text's.
struct StaticStages {
  int ranks = 1, encoder = 1, text = 1;  // stages: all of them a multiple of the ranks

  int chunks() const { return (encoder + text) / ranks; }
  // The time of a stage's forward, where a module that lies on all ranks has one stage on each.
  double time(const ModuleMicroBatch& micro_batch, std::int32_t stage) const {
    if (stage >= encoder) return micro_batch.backbone * ranks / text;
    return std::accumulate(micro_batch.parts.begin(), micro_batch.parts.end(), 0.0) * ranks / encoder;
  }
};

// Its compute alone, without the encoder's actions of micro-batches that have no images.
Schedule without_idle(Schedule schedule, const StaticStages& stages, const ModuleProblem& batch) {
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) {
    std::vector<Action> kept;
    for (Action action : row)
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        if (is_compute(action.kind) && m >= 0 && (action.stage >= stages.encoder || !batch.micro_batches[at(m)].parts.empty()))
          kept.push_back({.stage = action.stage, .kind = action.kind, .microbatch = m});
    row = std::move(kept);
  }
  return schedule;
}

StaticTable timed(std::string name, const Schedule& schedule, const StaticStages& stages, const std::vector<ModuleProblem>& batches) {
  StaticTable out{std::move(name), {}};
  const StageShape shape = chain(stages.encoder + stages.text);
  for (const ModuleProblem& batch : batches) {
    const auto forward = [&](std::int32_t stage, std::int32_t m) { return stages.time(batch.micro_batches[at(m)], stage); };
    const TableCosts costs = costs_by_forward(stages.encoder + stages.text, batch.micro_batches.size(), forward);
    out.times.push_back(time_table(without_idle(schedule, stages, batch), shape, costs).makespan);
  }
  return out;
}

// The costs of the mean micro-batch.
TableCosts mean_costs(const StaticStages& stages, const std::vector<ModuleProblem>& batches) {
  const auto mean = [&](std::int32_t stage, std::int32_t) {
    double sum = 0, count = 0;
    for (const ModuleProblem& batch : batches)
      for (const ModuleMicroBatch& micro_batch : batch.micro_batches) {
        sum += stages.time(micro_batch, stage);
        ++count;
      }
    return sum / count;
  };
  TableCosts out = costs_by_forward(stages.encoder + stages.text, 1, mean);
  out.first.clear();
  return out;
}

}  // namespace

double StaticTable::total() const {
  return std::accumulate(times.begin(), times.end(), 0.0);
}

StaticTable best_static_table(const std::vector<ModuleProblem>& batches, std::uint64_t seed) {
  if (batches.empty()) throw Error("there are no batches");
  const int ranks = batches[0].ranks, microbatches = static_cast<int>(batches[0].micro_batches.size());
  for (const ModuleProblem& batch : batches)
    if (std::ssize(batch.micro_batches) != microbatches || batch.ranks != ranks || batch.part_rounds != 1 || batch.backbone_rounds != 1)
      throw Error("the batches differ in their ranks or micro-batches, or have several rounds", {}, "one table is for one number of each");
  StaticTable best;
  const auto consider = [&](StaticTable found) {
    if (best.times.empty() || found.total() < best.total()) best = std::move(found);
  };
  std::vector<StaticStages> layouts = {{ranks, ranks, ranks}};
  if (ranks % 2 == 0) layouts.push_back({ranks, ranks / 2, ranks / 2});
  for (const StaticStages& stages : layouts) {
    const std::string of = concat(" with ", stages.chunks(), " stages a rank");
    for (const RegisteredTable& table : registered_tables({.actors = ranks, .microbatches = microbatches, .chunks = stages.chunks()}))
      if (table.refused.empty()) consider(timed(table.title() + of, table.schedule, stages, batches));
    SearchProblem problem{
        .shape = chain(stages.encoder + stages.text), .actors = ranks, .microbatches = microbatches, .costs = mean_costs(stages, batches)};
    consider(timed("searched" + of, search_schedule(problem, {.placements = {}, .seed = seed}).schedule, stages, batches));
  }
  return best;
}

}  // namespace penstock
