// SPDX-License-Identifier: Apache-2.0
// penstock batch table, search: the planner that tries plans in the simulator.

#include "batch/cyclic.h"
#include "batch/inject.h"
#include "batch/searched_batch.h"
#include "cli/batch_samples.h"

namespace penstock {
namespace {

std::int64_t candidates_of(const JsonNode& instance) {
  return whole_or(instance, "candidates", 1, SearchedBatchProblem{}.candidates);
}

// DynaPipe's table at the cap, whose micro-batches have their own numbers.
Injection dynapipe_table(int actors, const MicroBatches& work, double cap, double latency) {
  Injection found = inject(actors, work, groups_of_like(work, usual_groups(work.count())), cap, latency);
  for (auto& row : found.schedule.actors)
    for (Action& action : row) action.microbatch = static_cast<std::int32_t>(found.order[at(action.microbatch)]);
  return found;
}

BatchAnswer solve_table(const JsonNode& instance) {
  const MicroBatches work = read_micro_batches(instance);
  const int actors = small_whole(instance, "actors");
  const double cap = figure_or(instance, "cap", kInfinity), latency = figure_or(instance, "latency", 0);
  const SearchProblem problem{.shape = chain(actors),
                              .actors = actors,
                              .microbatches = static_cast<int>(work.count()),
                              .costs = table_costs(actors, work, latency),
                              .network = latency > 0 ? one_lane_each(actors) : Network{},
                              .memory_limit = cap,
                              .split = flag(instance, "split", true),
                              .recompute = flag(instance, "recompute")};
  const Injection theirs = dynapipe_table(actors, work, cap, latency);
  SearchResult found = search_schedule(problem, {.seed = seed_of(instance), .moves = candidates_of(instance), .given = {theirs.schedule}});
  return {{{"makespan", exact(found.time.makespan)},
           {"lower_bound", exact(found.lower_bound)},
           {"dynapipe", exact(theirs.time.makespan)},
           {"peak_live", exact(found.time.peak_live)},
           {"found_by", found.found_by}},
          std::move(found.schedule)};
}

BatchAnswer solve_search(const JsonNode& instance) {
  const auto [samples, decoder] = read_lengths(instance);
  SearchedBatchProblem problem{.samples = samples,
                               .order = read_order(instance, samples),
                               .ragged = flag(instance, "ragged"),
                               .round = whole_or(instance, "round", 1, 8),
                               .actors = small_whole(instance, "actors"),
                               .costs = {},
                               .limit = figure_or(instance, "memory", kInfinity),
                               .split = flag(instance, "split"),
                               .recompute = flag(instance, "recompute"),
                               .candidates = candidates_of(instance),
                               .seed = seed_of(instance)};
  if (!problem.ragged) problem.samples = padded(samples, decoder, problem.round);
  problem.costs = stage_costs(read_formula(instance), problem.actors);
  PlannedBatch plan = search_batch(problem);
  nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
  for (const BatchLoad& load : plan.loads) shapes.push_back({load.shape.samples, load.shape.input, load.shape.target});
  return {{{"time", exact(plan.time)},
           {"peak_live", exact(plan.peak)},
           {"found_by", plan.found_by},
           {"shapes", shapes},
           {"samples", plan.samples}},
          std::move(plan.schedule)};
}

}  // namespace

std::vector<BatchKind> searched_kinds() {
  return {{"search",
           "a whole batch by search: its micro-batches, and a table for them",
           {"lengths", "pairs", "order", "round", "context", "ragged", "fixed", "linear", "quadratic", "stored", "memory", "actors",
            "split", "recompute", "candidates", "seed"},
           solve_search},
          {"table",
           "micro-batches that differ: their order and their table by search",
           {"actors", "forward", "backward", "sizes", "cap", "latency", "split", "recompute", "candidates", "seed"},
           solve_table}};
}

}  // namespace penstock
