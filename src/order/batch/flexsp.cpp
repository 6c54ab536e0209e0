// SPDX-License-Identifier: Apache-2.0
#include "batch/flexsp.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "batch/divide.h"
#include "batch/split_sequences.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::int64_t kGroupNodes = 2000;  // of a search for a batch's groups: a plan must not take as long as its step

double sum_of(const std::vector<std::int64_t>& lengths) {
  return static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
}

// Returns buckets of ascending lengths: 16, or more while the padded tokens are more than the mean of the real ones and the capacity.
Buckets few_buckets(const std::vector<std::int64_t>& ascending, double capacity) {
  constexpr std::size_t kBuckets = 16;
  const double real = sum_of(ascending);
  for (std::size_t count = kBuckets;; ++count) {
    Buckets buckets = bucket_lengths(ascending, count);
    if (count >= ascending.size() || real + static_cast<double>(buckets.error) <= (real + capacity) / 2) return buckets;
  }
}

// Groups the lengths, which are descending, by the bounds of their buckets, and gives the result at real lengths.
Grouping group_by_buckets(const std::vector<std::int64_t>& lengths, const GroupCosts& costs, const GroupOptions& options) {
  const std::vector<std::int64_t> ascending(lengths.rbegin(), lengths.rend());
  const Buckets buckets = few_buckets(ascending, costs.capacity * options.devices);
  std::map<std::int64_t, std::vector<std::int64_t>> real;  // by bound, ascending
  std::vector<std::int64_t> bounds;
  for (const std::int64_t length : ascending) {
    bounds.push_back(*std::lower_bound(buckets.bounds.begin(), buckets.bounds.end(), length));
    real[bounds.back()].push_back(length);
  }
  Grouping out = group_batch(bounds, costs, options);
  out.milliseconds = 0;
  for (SequenceGroup& group : out.groups) {
    for (std::int64_t& length : group.lengths) {
      std::vector<std::int64_t>& left = real.at(length);
      length = left.back();
      left.pop_back();
    }
    out.milliseconds = std::max(out.milliseconds, costs.time(group));
  }
  return out;
}

// The lengths, which are descending, in so many micro-batches; none: not all are below the capacity. Infinite time: groups of one do not
// fit, for `reason`.
std::optional<GroupedBatch> grouped_in(std::size_t count, const std::vector<std::int64_t>& lengths, const GroupCosts& costs,
                                       const GroupOptions& options, std::string& reason) {
  std::vector<std::size_t> begins = divide_by_sum(lengths, count);
  begins.push_back(lengths.size());
  GroupedBatch batch;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::int64_t> part(lengths.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                                         lengths.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]));
    if (sum_of(part) >= costs.capacity * options.devices) return {};
    try {
      batch.micro_batches.push_back(group_by_buckets(part, costs, options));
      batch.milliseconds += batch.micro_batches.back().milliseconds;
    } catch (const Error& error) {
      reason = error.what();
      batch.milliseconds = kInfinity;
      break;
    }
  }
  return batch;
}

std::size_t fewest_micro_batches(const std::vector<std::int64_t>& lengths, const GroupCosts& costs, const GroupOptions& options) {
  return static_cast<std::size_t>(std::max(std::ceil(sum_of(lengths) / (costs.capacity * options.devices)), 1.0));
}

[[noreturn]] void fail_to_fit(const std::string& reason, const std::string& hint = "") {
  throw Error(reason.empty() ? "the sequences do not fit into the devices' memory" : split(reason, '\n')[0], {}, hint);
}

// All of `lengths`, descending. Time is in the costs' unit; of memory a device has its share of as many micro-batches as there are actors.
GroupCosts group_costs(const SearchedBatchProblem& problem, const FlexspOptions& options, std::int64_t longest) {
  const SequenceCosts work = sequence_costs(problem.costs, static_cast<double>(longest));
  const Link& link = problem.network.link;
  GroupCosts out{
      .a1 = work.a1, .a2 = work.a2, .a3 = options.sent, .beta = work.fixed, .start = options.messages * link.latency, .bandwidth = {}};
  for (int degree = 2; degree <= options.devices; degree *= 2) {
    const auto own = options.bandwidth.find(degree);
    out.bandwidth[degree] = own == options.bandwidth.end() ? link.bandwidth : own->second;
  }
  BatchLoad token;
  token.input = 1;
  double live = 0;
  for (const StageCosts& stage : problem.costs(token)) live = std::max(live, stage.live);
  if (problem.limit < kInfinity && live > 0) out.capacity = problem.limit / problem.actors / live;
  return out;
}

// Each action once for each group of its micro-batch.
Schedule in_groups(Schedule table, const std::vector<Grouping>& micro_batches) {
  std::vector<std::int32_t> first{0};
  for (const Grouping& each : micro_batches) first.push_back(first.back() + static_cast<std::int32_t>(each.groups.size()));
  table.cells.clear();
  for (std::vector<Action>& row : table.actors) {
    std::vector<Action> out;
    for (Action action : row) {
      const std::size_t of = at(action.microbatch);
      for (action.microbatch = first[of]; action.microbatch < first[of + 1]; ++action.microbatch) out.push_back(action);
    }
    row = std::move(out);
  }
  return table;
}

BatchLoad load_of(const SearchedBatchProblem& problem, const GroupCosts& costs, const std::vector<std::size_t>& samples, int degree) {
  BatchLoad out = ragged_load(problem.samples, samples, problem.round);
  out.shape.degree = degree;
  if (degree > 1) out.together = (costs.start + costs.a3 * out.input / (degree * costs.bandwidth.at(degree))) / 3;
  out.input /= degree;
  out.input_squares /= degree;
  return out;
}

PlannedBatch as_planned(const SearchedBatchProblem& problem, const GroupedBatch& batch, const GroupCosts& costs) {
  PlannedBatch out;
  SamplesByLength samples(problem.samples);
  for (const Grouping& micro_batch : batch.micro_batches) {
    const auto time = [&](const SequenceGroup& group) { return costs.time(group); };
    const auto slowest = std::ranges::max_element(micro_batch.groups, {}, time) - micro_batch.groups.begin();
    for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
      std::vector<std::size_t>& of_group = out.samples.emplace_back();
      for (const std::int64_t length : micro_batch.groups[g].lengths) of_group.push_back(samples.take(length));
      out.loads.push_back(load_of(problem, costs, of_group, micro_batch.groups[g].degree));
      out.loads.back().beside = std::cmp_not_equal(g, slowest);
    }
  }
  const Schedule table = make_schedule("1f1b", {.actors = problem.actors, .microbatches = static_cast<int>(batch.micro_batches.size())});
  out.schedule = in_groups(table, batch.micro_batches);
  out.found_by = concat("flexsp, ", counted(std::ssize(batch.micro_batches), "micro-batch"));
  time_plan(problem, out);
  return out;
}

}  // namespace

GroupedBatch group_in_micro_batches(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options) {
  constexpr int kMore = 4;
  if (lengths.empty()) throw Error("there are no sequences to group");
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  std::optional<GroupedBatch> best;
  std::string reason;  // why there is none
  int more = 0;        // numbers tried since all micro-batches were below the capacity
  for (std::size_t count = fewest_micro_batches(lengths, costs, options); count <= lengths.size() && more <= kMore; ++count) {
    std::optional<GroupedBatch> batch = grouped_in(count, lengths, costs, options, reason);
    more += batch ? 1 : 0;
    if (batch && batch->milliseconds < kInfinity && (!best || batch->milliseconds < best->milliseconds)) best = std::move(batch);
  }
  if (!best) fail_to_fit(reason);
  return *std::move(best);
}

PlannedBatch flexsp_batch(const SearchedBatchProblem& problem, const FlexspOptions& options) {
  std::vector<std::int64_t> lengths;
  for (const SampleLengths& sample : problem.samples) lengths.push_back(sample.input);
  std::ranges::sort(lengths, std::greater<>());
  const GroupCosts costs = group_costs(problem, options, options.context);
  const GroupOptions groups{.devices = options.devices, .all_devices = true, .nodes = kGroupNodes};
  const std::size_t fewest = fewest_micro_batches(lengths, costs, groups);
  std::set<std::size_t> counts;
  for (std::size_t more = 0; more <= 4; ++more) counts.insert(fewest + more);
  for (int factor : {1, 2, 4}) counts.insert(std::max(fewest, at(factor * problem.actors)));
  std::optional<PlannedBatch> best;
  std::string reason;
  for (const std::size_t count : counts) {
    if (count > lengths.size()) break;
    const std::optional<GroupedBatch> batch = grouped_in(count, lengths, costs, groups, reason);
    if (!batch || batch->milliseconds == kInfinity) continue;
    PlannedBatch plan = as_planned(problem, *batch, costs);
    if (plan.peak <= problem.limit && (!best || plan.time < best->time)) best = std::move(plan);
  }
  if (!best) fail_to_fit(reason, "raise the limit, or give the axis of the mesh more members");
  return *std::move(best);
}

}  // namespace penstock
