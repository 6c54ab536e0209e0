#include "batch/infinipipe.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"
#include "batch/checkpoint_plan.h"
#include "batch/chunk_schedule.h"
#include "batch/split_sequences.h"
#include "penstock/error.h"
#include "search/relieve.h"

namespace penstock {
namespace {

std::vector<double> rounded_bounds(double length, int pieces, const SequenceCosts& costs, double round) {
  std::vector<double> out;
  for (const double bound : cut_bounds(length, pieces, costs)) {
    const double whole = std::max(1.0, std::round(bound / round)) * round;
    if (whole < length && (out.empty() || whole > out.back())) out.push_back(whole);
  }
  return out;
}

// Tokens of the longest piece: a chunk of short samples is no longer.
double longest_piece(const std::vector<double>& bounds, double length, double round) {
  double longest = 0, begin = 0;
  for (const double bound : bounds) longest = std::max(longest, bound - std::exchange(begin, bound));
  return std::max(longest, std::ceil((length - begin) / round) * round);
}

BatchLoad load_of(const Chunk& chunk, std::int64_t round) {
  const auto square = [](std::int64_t tokens) { return static_cast<double>(tokens) * static_cast<double>(tokens); };
  BatchLoad out;
  out.shape.input = std::max<std::int64_t>((chunk.total() + round - 1) / round, 1) * round;
  out.input = static_cast<double>(out.shape.input);
  out.input_squares = square(chunk.before + chunk.tokens) - square(chunk.before);
  for (const std::int64_t length : chunk.shorts) out.input_squares += square(length);
  return out;
}

std::vector<std::size_t> samples_of(const std::vector<Chunk>& sequence, SamplesByLength& samples) {
  std::vector<std::size_t> out;
  const Chunk& last = sequence.back();
  if (last.before + last.tokens > 0) out.push_back(samples.take(last.before + last.tokens));
  for (const std::int64_t length : last.shorts) out.push_back(samples.take(length));
  return out;
}

BatchLoad load_of(const std::vector<Chunk>& sequence, std::int64_t round) {
  BatchLoad out;
  for (const Chunk& chunk : sequence) {
    const BatchLoad& slice = out.slices.emplace_back(load_of(chunk, round));
    out.shape.input += slice.shape.input;
    out.shape.slices.push_back(slice.shape.input);
    out.input += slice.input;
    out.input_squares += slice.input_squares;
  }
  return out;
}

std::vector<int> chunks_of(const PlannedBatch& plan) {
  std::vector<int> out;
  for (const BatchLoad& load : plan.loads) out.push_back(static_cast<int>(load.slices.size()));
  return out;
}

// A sample of `reference` tokens would be cut into so many pieces.
PlannedBatch cut_into(int pieces, std::int64_t reference, const SearchedBatchProblem& problem) {
  const auto length = static_cast<double>(reference), round = static_cast<double>(problem.round);
  const SequenceCosts costs = sequence_costs(problem.costs, length);
  std::vector<std::int64_t> lengths;
  for (const SampleLengths& sample : problem.samples) lengths.push_back(sample.input);
  const std::vector<double> bounds = rounded_bounds(length, pieces, costs, round);
  const SplitSequences split =
      split_at(bounds, costs.time(0, length) / pieces, std::move(lengths), costs, longest_piece(bounds, length, round));
  SamplesByLength samples(problem.samples);
  PlannedBatch out;
  for (const std::vector<Chunk>& sequence : split.sequences) {
    out.samples.push_back(samples_of(sequence, samples));
    out.loads.push_back(load_of(sequence, problem.round));
  }
  out.schedule = sequence_schedule(problem.actors, chunks_of(out));
  out.found_by = concat("infinipipe, ", pieces, pieces == 1 ? " piece" : " pieces");
  time_plan(problem, out);
  return out;
}

// By InfiniPipe's plan for chunks that are all as large as the largest, of stages of one layer. What a backward has recomputed is there
// while it runs, so there is room for one chunk's less.
std::optional<PlannedBatch> with_checkpoints(const SearchedBatchProblem& problem, PlannedBatch plan) {
  constexpr std::int64_t kNodes = 2000;  // a plan must not take as long as its step
  CheckpointProblem checkpoints{.actors = problem.actors, .layers = problem.actors, .saved = kInfinity, .nodes = kNodes};
  double most_saved = 0;
  for (const BatchLoad& load : plan.loads)
    for (const BatchLoad& slice : load.slices)
      for (const StageCosts& stage : problem.costs(slice)) {
        checkpoints.full = std::max(checkpoints.full, stage.live);
        checkpoints.saved = std::min(checkpoints.saved, stage.live - stage.kept);
        most_saved = std::max(most_saved, stage.live - stage.kept);
      }
  checkpoints.room = problem.limit - most_saved;
  const CheckpointPlan found = plan_checkpoints(checkpoints, chunks_of(plan));
  if (!found.feasible) return {};
  for (std::size_t actor = 0; actor < plan.schedule.actors.size(); ++actor) {
    std::vector<Action> row;
    std::size_t entry = plan.schedule.actors.size() - 1 - actor;
    for (const Action& action : plan.schedule.actors[actor]) {
      if (action.kind == Kind::B && found.per_chunk[entry++] > 0) row.push_back({action.stage, Kind::R, action.microbatch});
      row.push_back(action);
    }
    plan.schedule.actors[actor] = std::move(row);
  }
  plan.found_by += ", checkpoints";
  return plan;
}

std::optional<PlannedBatch> relieved(const SearchedBatchProblem& problem, PlannedBatch plan) {
  const SearchProblem table{.shape = shape_of(plan.schedule),
                            .actors = problem.actors,
                            .microbatches = plan.schedule.microbatches(),
                            .costs = table_costs(plan.loads, problem.costs),
                            .network = problem.network,
                            .memory_limit = problem.limit,
                            .recompute = true};
  std::optional<Schedule> found = relieve(table, plan.schedule);
  if (!found) return {};
  plan.schedule = *std::move(found);
  plan.found_by += ", relieved";
  return plan;
}

// The plan within the limit; none: it does not keep it.
std::optional<PlannedBatch> within_limit(const SearchedBatchProblem& problem, PlannedBatch plan) {
  if (plan.peak <= problem.limit) return plan;
  if (!problem.recompute) return {};
  std::optional<PlannedBatch> best;
  for (std::optional<PlannedBatch> candidate : {with_checkpoints(problem, plan), relieved(problem, plan)}) {
    if (!candidate) continue;
    time_plan(problem, *candidate);
    if (candidate->peak <= problem.limit && (!best || candidate->time < best->time)) best = std::move(candidate);
  }
  return best;
}

}  // namespace

PlannedBatch infinipipe_batch(const SearchedBatchProblem& problem, const InfiniPipeOptions& options) {
  std::int64_t longest = 0, reference = options.context;
  for (const SampleLengths& sample : problem.samples) longest = std::max(longest, sample.input);
  while (reference / 2 >= std::max(longest, problem.round)) reference /= 2;
  std::optional<PlannedBatch> best;
  double least = kInfinity;  // that a plan keeps on a stage
  for (int pieces = 1;; pieces = std::min(2 * pieces, options.slices)) {
    PlannedBatch cut = cut_into(pieces, reference, problem);
    least = std::min(least, cut.peak);
    std::optional<PlannedBatch> plan = within_limit(problem, std::move(cut));
    if (plan && (!best || plan->time < best->time)) best = std::move(plan);
    if (pieces == options.slices) break;
  }
  if (best) return *std::move(best);
  throw Error(
      concat("a batch of ", problem.samples.size(), " sequences keeps no limit of ", number(problem.limit), " on a stage, cut into ",
             options.slices, " slices or fewer"),
      {concat("the plan that keeps least has ", number(std::ceil(least)), " at once on a stage, of all micro-batches that it holds"),
       concat("the longest sequence has ", longest, " tokens")},
      concat("raise the limit or batch.slices", problem.recompute ? "" : ", or set batch.recompute = \"inputs\""));
}

}  // namespace penstock
