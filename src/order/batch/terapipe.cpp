// SPDX-License-Identifier: Apache-2.0
#include "batch/terapipe.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text.h"
#include "base/words.h"
#include "batch/chunk_schedule.h"
#include "batch/slice_sequences.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Sequences of `length` tokens, whose slices begin at multiples of `unit`.
struct SlicedRows {
  std::int64_t length = 0, unit = 1;

  std::int64_t token(std::int64_t units) const { return std::min(units * unit, length); }
  int units() const { return static_cast<int>((length + unit - 1) / unit); }
};

BatchLoad slice_load(std::int64_t sequences, std::int64_t begin, std::int64_t end) {
  BatchLoad out = padded_load({sequences, end - begin});
  out.input_squares += 2.0 * static_cast<double>(sequences * begin * (end - begin));
  return out;
}

SlicePlan plan_groups(const SearchedBatchProblem& problem, const SlicedRows& rows) {
  return slice_sequences(
      {problem.actors, static_cast<int>(problem.samples.size()), rows.units()}, [&](int sequences, int length, int context) {
        double longest = 0;
        for (const StageCosts& stage : problem.costs(slice_load(sequences, rows.token(context), rows.token(context + length))))
          longest = std::max(longest, stage.of(Kind::F) + stage.of(Kind::B));
        return longest;
      });
}

std::size_t most_slices_of(const SlicePlan& plan) {
  std::size_t most = 0;
  for (const SliceGroup& group : plan.groups) most = std::max(most, group.slices.size());
  return most;
}

// The load of a group whose longest sequence has `length` tokens.
BatchLoad load_of(const SliceGroup& group, const SlicedRows& rows, std::int64_t length) {
  BatchLoad out = padded_load({group.sequences, length});
  std::int64_t units = 0;
  for (const int slice : group.slices) {
    const std::int64_t begin = rows.token(units), end = std::min(rows.token(units += slice), length);
    if (begin >= end) break;
    out.shape.slices.push_back(end - begin);
    out.slices.push_back(slice_load(group.sequences, begin, end));
  }
  return out;
}

PlannedBatch grouped_batch(const SearchedBatchProblem& problem, const SlicePlan& plan, const SlicedRows& rows) {
  PlannedBatch out;
  auto next = problem.order.begin();
  for (const SliceGroup& group : plan.groups) {
    const std::int64_t longest = problem.samples[*next].input;
    out.samples.emplace_back(next, next + group.sequences);
    out.loads.push_back(load_of(group, rows, longest));
    next += group.sequences;
  }
  return out;
}

// The group's sequences run together with the other groups', or by themselves.
std::vector<std::vector<std::size_t>> divided(std::size_t groups, bool one_by_one) {
  std::vector<std::vector<std::size_t>> out(one_by_one ? groups : 1);
  for (std::size_t g = 0; g < groups; ++g) out[one_by_one ? g : 0].push_back(g);
  return out;
}

}  // namespace

PlannedBatch terapipe_batch(const SearchedBatchProblem& problem, int slices) {
  constexpr std::int64_t kUnits = 64;  // of a sequence, as the search grows by their square
  const std::int64_t longest = problem.samples[problem.order.front()].input;
  SlicedRows rows{longest, (longest / kUnits / problem.round + 1) * problem.round};
  SlicePlan plan = plan_groups(problem, rows);
  for (; most_slices_of(plan) > at(slices); plan = plan_groups(problem, rows)) rows.unit += problem.round;
  const PlannedBatch groups = grouped_batch(problem, plan, rows);
  std::vector<int> chunks;
  for (const BatchLoad& load : groups.loads) chunks.push_back(static_cast<int>(load.slices.size()));
  std::optional<PlannedBatch> best;
  double least = kInfinity;
  for (const bool one_by_one : {false, true}) {
    PlannedBatch candidate = groups;
    candidate.schedule = sequence_schedule(problem.actors, chunks, divided(chunks.size(), one_by_one));
    candidate.found_by = concat("terapipe, ", counted(chunks.size(), "group"), one_by_one ? ", one by one" : "");
    time_plan(problem, candidate);
    least = std::min(least, candidate.peak);
    if (candidate.peak <= problem.limit && (!best || candidate.time < best->time)) best = std::move(candidate);
  }
  if (best) return *std::move(best);
  throw Error(concat("a batch of ", problem.samples.size(), " sequences keeps no limit of ", number(problem.limit), " on a stage in the ",
                     counted(chunks.size(), "group"), " of TeraPipe's plan"),
              {concat("one group after the other, a stage has ", number(std::ceil(least)), " at once")},
              "raise the limit, or set batch.planner = \"infinipipe\" and batch.recompute = \"inputs\"");
}

}  // namespace penstock
