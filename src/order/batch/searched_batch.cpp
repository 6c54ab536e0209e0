// SPDX-License-Identifier: Apache-2.0
#include "batch/searched_batch.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "batch/balanced_rows.h"
#include "batch/plan_batch.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Rows = std::vector<std::vector<std::size_t>>;

BatchLoad load_of(const SearchedBatchProblem& problem, const std::vector<std::size_t>& of_row) {
  if (problem.ragged) return ragged_load(problem.samples, of_row, problem.round, problem.decoder);
  BatchShape shape;
  for (const std::size_t i : of_row)
    shape = {shape.samples + 1, std::max(shape.input, problem.samples[i].input), std::max(shape.target, problem.samples[i].target)};
  return padded_load(shape);
}

double work_of(const std::vector<StageCosts>& stages) {
  double most = 0;
  for (const StageCosts& stage : stages) most = std::max(most, stage.of(Kind::F) + stage.of(Kind::B));
  return most;
}

SearchProblem table_problem(const SearchedBatchProblem& problem, const std::vector<BatchLoad>& loads) {
  return {.shape = chain(problem.actors),
          .actors = problem.actors,
          .microbatches = static_cast<int>(loads.size()),
          .costs = table_costs(loads, problem.costs),
          .network = problem.network,
          .memory_limit = problem.limit,
          .split = problem.split,
          .recompute = problem.recompute};
}

Rows rows_of(const BatchCut& cut, const std::vector<std::size_t>& order) {
  Rows rows;
  for (std::size_t m = 0; m < cut.begins.size(); ++m) {
    const std::size_t end = m + 1 < cut.begins.size() ? cut.begins[m + 1] : order.size();
    rows.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(cut.begins[m]), order.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return rows;
}

struct Candidate {
  Rows rows;
  std::vector<Schedule> tables;  // given to the search
};

BatchProblem dynapipe_problem(const SearchedBatchProblem& problem, double interval) {
  BatchProblem out{.samples = problem.samples,
                   .order = problem.order,
                   .modes = {},
                   .cut = {.stages = problem.actors, .interval = interval},
                   .available = problem.limit,
                   .seed = problem.seed};
  for (const Recompute mode : problem.modes)
    out.modes.push_back({recompute_words()[static_cast<std::size_t>(mode)], slowest_stage(problem.costs, mode)});
  if (problem.recompute) out.modes.push_back({"R", slowest_stage(problem.costs, /*recompute=*/true)});
  return out;
}

// The plan by the numbers of the cut's micro-batches, with an R before every B in the mode that has no more than that.
Candidate candidate_of(const SearchedBatchProblem& problem, BatchPlan plan) {
  ReplicaPlan& replica = plan.replicas[0];
  for (auto& row : replica.schedule.actors) {
    std::vector<Action> actions;
    for (Action action : row) {
      action.microbatch = static_cast<std::int32_t>(replica.micro_batches[at(action.microbatch)]);
      if (action.kind == Kind::B && replica.mode == problem.modes.size()) actions.push_back({action.stage, Kind::R, action.microbatch});
      actions.push_back(action);
    }
    row = std::move(actions);
  }
  return {rows_of(plan.fitted.cut, problem.order), {std::move(replica.schedule)}};
}

// Returns the distance of the candidates for the longest time that a cut is tried with: more of them make a micro-batch shorter by less
// than a hundredth.
double interval_of(const SearchedBatchProblem& problem) {
  constexpr double kSteps = 100;
  std::vector<std::size_t> all(problem.samples.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  double longest = 0;
  for (const std::size_t i : all) longest = std::max(longest, work_of(problem.costs(load_of(problem, {i}))));
  return longest / kSteps;
}

// DynaPipe's, and cuts whose longest micro-batch may take less or more.
std::vector<Candidate> padded_candidates(const SearchedBatchProblem& problem) {
  constexpr std::array kShares = {0.35, 0.5, 0.7, 1.4, 2.0};
  const BatchProblem theirs = dynapipe_problem(problem, interval_of(problem));
  BatchPlan plan = plan_batch(theirs);
  std::vector<double> longest;
  for (const double share : kShares) longest.push_back(share * plan.fitted.cut.longest);
  std::vector<Candidate> out = {candidate_of(problem, std::move(plan))};
  const BatchCutOptions options{.stages = problem.actors, .stored_limit = problem.limit, .peak_limit = problem.limit};
  for (const BatchCut& cut : cuts_below(longest, problem.samples, problem.order, theirs.modes[0].costs, options)) {
    Rows rows = rows_of(cut, problem.order);
    if (std::ranges::none_of(out, [&](const Candidate& other) { return other.rows == rows; })) out.push_back({std::move(rows), {}});
  }
  return out;
}

std::vector<double> works_of(const SearchedBatchProblem& problem) {
  std::vector<double> work;
  for (std::size_t i = 0; i < problem.samples.size(); ++i)
    work.push_back(work_of(problem.costs(ragged_load(problem.samples, {i}, 1, problem.decoder))));
  return work;
}

// Returns candidates with as many rows as actors, and always half as many again, as long as there are samples for them: the first few
// numbers that keep the limit.
std::vector<Candidate> ragged_candidates(const SearchedBatchProblem& problem) {
  constexpr std::size_t kNumbers = 8;
  const std::vector<double> work = works_of(problem);
  const auto keeps_limit = [&](const std::vector<std::size_t>& row) {
    const std::vector<StageCosts> stages = problem.costs(load_of(problem, row));
    return std::ranges::all_of(stages, [&](const StageCosts& stage) { return stage.live <= problem.limit; });
  };
  std::vector<Candidate> out;
  const std::size_t most = problem.samples.size();
  for (std::size_t rows = std::min(at(problem.actors), most); out.size() < kNumbers; rows = std::min(rows + (rows + 1) / 2, most)) {
    Candidate candidate{balanced_rows(work, rows), {}};
    if (std::ranges::all_of(candidate.rows, keeps_limit)) out.push_back(std::move(candidate));
    if (rows == most) break;
  }
  if (out.empty())
    fail_no_cut(problem.samples, {{"none", slowest_stage(problem.costs)}}, {.stored_limit = problem.limit, .peak_limit = problem.limit});
  return out;
}

// By at most so many tables.
PlannedBatch planned(const SearchedBatchProblem& problem, Candidate candidate, std::int64_t most) {
  PlannedBatch out;
  for (const auto& row : candidate.rows) out.loads.push_back(load_of(problem, row));
  SearchResult table =
      search_schedule(table_problem(problem, out.loads), {.seed = problem.seed, .moves = most, .given = std::move(candidate.tables)});
  out.samples = std::move(candidate.rows);
  out.schedule = std::move(table.schedule);
  out.time = table.time.makespan;
  out.peak = table.time.peak();
  out.found_by = std::move(table.found_by);
  return out;
}

// The costs of micro-batches in slices, each a class of its own; slices that a micro-batch does not have cost nothing.
TableCosts sliced_costs(const std::vector<BatchLoad>& loads, std::size_t slices, const StageCostsOf& costs) {
  TableCosts out;
  for (const BatchLoad& load : loads) {
    out.first.push_back(static_cast<std::int32_t>(out.stages.size()));
    std::vector<std::vector<StageCosts>> of_slice;
    for (const BatchLoad& slice : load.slices) of_slice.push_back(costs(slice));
    for (std::size_t stage = 0; stage < of_slice[0].size(); ++stage)
      for (std::size_t slice = 0; slice < slices; ++slice)
        out.stages.push_back(slice < of_slice.size() ? of_slice[slice][stage] : StageCosts{.live = 0});
  }
  return out;
}

}  // namespace

TableCosts table_costs(const std::vector<BatchLoad>& loads, const StageCostsOf& costs) {
  std::size_t slices = 0;
  for (const BatchLoad& load : loads) slices = std::max(slices, load.slices.size());
  if (slices > 0) return sliced_costs(loads, slices, costs);
  TableCosts out;
  std::map<BatchShape, std::int32_t> known;
  for (const BatchLoad& load : loads) {
    const auto next = static_cast<std::int32_t>(out.stages.size());
    const bool is_padded = load.shape.samples > 0;
    const std::int32_t first = is_padded ? known.try_emplace(load.shape, next).first->second : next;
    out.first.push_back(first);
    if (first != next) continue;
    std::vector<StageCosts> stages = costs(load);
    for (StageCosts& stage : stages) {
      stage.of(Kind::F) += load.together;
      stage.of(Kind::B) += 2 * load.together;
    }
    if (load.beside) stages.assign(stages.size(), {.live = 0});
    out.stages.insert(out.stages.end(), stages.begin(), stages.end());
  }
  return out;
}

int most_slices(const PlannedBatch& plan) {
  return plan.loads.empty() || plan.loads[0].slices.empty() ? 0 : plan.schedule.slices;
}

PlannedBatch dynapipe_batch(const SearchedBatchProblem& problem) {
  BatchPlan plan = plan_batch(dynapipe_problem(problem, interval_of(problem)));
  const std::size_t mode = plan.replicas[0].mode;
  Candidate candidate = candidate_of(problem, std::move(plan));
  PlannedBatch out{.samples = std::move(candidate.rows), .loads = {}, .schedule = std::move(candidate.tables[0]), .found_by = "dynapipe"};
  for (const auto& row : out.samples) {
    out.loads.push_back(load_of(problem, row));
    if (mode < problem.modes.size()) out.loads.back().shape.recompute = problem.modes[mode];
  }
  time_plan(problem, out);
  return out;
}

void time_plan(const SearchedBatchProblem& problem, PlannedBatch& plan) {
  const TableTime time = time_batch(plan, problem.costs, problem.network);
  plan.time = time.makespan;
  plan.peak = time.peak();
}

TableTime time_batch(const PlannedBatch& plan, const StageCostsOf& costs, const Network& network) {
  const TableCosts table = table_costs(plan.loads, costs);
  return time_table(plan.schedule, shape_of(plan.schedule), table, {.network = network});
}

PlannedBatch balanced_batch(const SearchedBatchProblem& problem, const Schedule& schedule) {
  PlannedBatch out{
      .samples = balanced_rows(works_of(problem), at(schedule.microbatches())), .loads = {}, .schedule = schedule, .found_by = "balanced"};
  for (const auto& row : out.samples) out.loads.push_back(load_of(problem, row));
  return out;
}

PlannedBatch search_batch(const SearchedBatchProblem& problem) {
  std::vector<Candidate> candidates = problem.ragged ? ragged_candidates(problem) : padded_candidates(problem);
  // First a few tables of each; then all of the rest for the rows that did best.
  const std::int64_t few = problem.candidates / static_cast<std::int64_t>(2 * candidates.size());
  std::optional<PlannedBatch> best;
  std::size_t best_candidate = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    PlannedBatch plan = planned(problem, candidates[i], few);
    if (best && plan.time >= best->time) continue;
    best = std::move(plan);
    best_candidate = i;
  }
  Candidate& chosen = candidates[best_candidate];
  chosen.tables = {best->schedule};
  PlannedBatch plan = planned(problem, std::move(chosen), problem.candidates / 2);
  if (plan.time >= best->time) return *std::move(best);
  return plan;
}

}  // namespace penstock
