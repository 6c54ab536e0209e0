// SPDX-License-Identifier: Apache-2.0
#include "batch/infinipipe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

// The slice, of whose layers on each stage the backward computes so many again.
BatchLoad computed_again(const SearchedBatchProblem& problem, BatchLoad slice, int layers) {
  slice.shape.again.assign(at(problem.actors), layers);
  return slice;
}

// A slice has what it has on the stage where it has most, and a layer saves what it saves where it saves least. What a backward has
// recomputed is there while it runs, one layer at a time, so there is room for that much less.
CheckpointProblem checkpoint_problem(const SearchedBatchProblem& problem, const PlannedBatch& plan) {
  constexpr std::int64_t kNodes = 2000;  // a plan must not take as long as its step
  CheckpointProblem out{.actors = problem.actors, .layers = problem.actors * problem.layers, .nodes = kNodes};
  double most_saved = 0;
  for (const BatchLoad& load : plan.loads)
    for (const BatchLoad& slice : load.slices) {
      ChunkMemory& chunk = out.memory.emplace_back(ChunkMemory{.saved = kInfinity});
      const std::vector<StageCosts> all = problem.costs(slice), less = problem.costs(computed_again(problem, slice, problem.layers));
      for (std::size_t stage = 0; stage < all.size(); ++stage) {
        const double saved = problem.layers > 0 ? std::max(all[stage].live - less[stage].live, 0.0) / problem.layers : 0;
        chunk.full = std::max(chunk.full, all[stage].live);
        chunk.saved = std::min(chunk.saved, saved);
        most_saved = std::max(most_saved, saved);
      }
    }
  out.room = problem.limit - most_saved;
  return out;
}

// The time in which the pipeline fills, in the mean time of a layer that is recomputed.
double filling_delay(const SearchedBatchProblem& problem, const PlannedBatch& plan) {
  double all = 0, again = 0;
  for (const BatchLoad& load : plan.loads)
    for (const BatchLoad& slice : load.slices)
      for (const StageCosts& stage : problem.costs(slice)) {
        all += stage.of(Kind::F) + stage.of(Kind::B);
        again += stage.of(Kind::R) / std::max(problem.layers, 1);
      }
  return again > 0 ? (problem.actors - 1) * all / again : 0;
}

// The plan's sequences in these groups.
PlannedBatch grouped(const SearchedBatchProblem& problem, PlannedBatch plan, const std::vector<CheckpointGroup>& groups) {
  std::vector<std::vector<std::size_t>> sequences;
  for (const CheckpointGroup& group : groups) sequences.push_back(group.sequences);
  plan.schedule = sequence_schedule(problem.actors, chunks_of(plan), sequences);
  if (groups.size() > 1) plan.found_by += concat(", ", groups.size(), " groups");
  return plan;
}

// `plan`: of these groups. By stage, the k-th backward of a group computes again what the entry says that is for it (plan_checkpoints).
PlannedBatch with_checkpoints(PlannedBatch plan, const std::vector<CheckpointGroup>& groups) {
  const std::size_t actors = plan.schedule.actors.size();
  for (BatchLoad& load : plan.loads) {
    load.shape.again.assign(actors * load.slices.size(), 0);
    for (BatchLoad& slice : load.slices) slice.shape.again.assign(actors, 0);
  }
  for (std::size_t actor = 0; actor < actors; ++actor) {
    std::vector<int> layers;  // by backward
    for (const auto& [sequences, found] : groups) {
      const auto before = static_cast<std::ptrdiff_t>(actors - 1 - actor), behind = static_cast<std::ptrdiff_t>(actor);
      layers.insert(layers.end(), found.per_chunk.begin() + before, found.per_chunk.end() - behind);
    }
    for (std::size_t backward = 0; const Action& action : plan.schedule.actors[actor]) {
      if (action.kind != Kind::B) continue;
      BatchLoad& load = plan.loads[at(action.microbatch)];
      const std::size_t slice = at(part_of(action.stage, plan.schedule.slices).slice);
      load.slices[slice].shape.again[actor] = load.shape.again[actor * load.slices.size() + slice] = layers[backward++];
    }
  }
  for (BatchLoad& load : plan.loads)
    if (std::ranges::all_of(load.shape.again, [](int layers) { return layers == 0; })) load.shape.again.clear();
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

// InfiniPipe's plans, of one group and of as many as it finds best, and what relieves the tables of these groups otherwise.
std::vector<PlannedBatch> smaller(const SearchedBatchProblem& problem, const PlannedBatch& plan) {
  const CheckpointProblem checkpoints = checkpoint_problem(problem, plan);
  const std::vector<int> chunks = chunks_of(plan);
  std::vector<std::size_t> all(chunks.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<PlannedBatch> out;
  for (const std::vector<CheckpointGroup>& groups : {std::vector<CheckpointGroup>{{all, plan_checkpoints(checkpoints, chunks)}},
                                                     group_by_chunks(checkpoints, chunks, filling_delay(problem, plan)).groups}) {
    if (groups.empty()) continue;  // none
    PlannedBatch table = grouped(problem, plan, groups);
    if (problem.layers > 0 && groups[0].plan.feasible) out.push_back(with_checkpoints(table, groups));
    if (std::optional<PlannedBatch> found = problem.recompute ? relieved(problem, table) : table) out.push_back(*std::move(found));
  }
  return out;
}

// The plan within the limit; none: it does not keep it.
std::optional<PlannedBatch> within_limit(const SearchedBatchProblem& problem, PlannedBatch plan) {
  if (plan.peak <= problem.limit) return plan;
  std::optional<PlannedBatch> best;
  for (PlannedBatch& candidate : smaller(problem, plan)) {
    time_plan(problem, candidate);
    if (candidate.peak <= problem.limit && (!best || candidate.time < best->time)) best = std::move(candidate);
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
