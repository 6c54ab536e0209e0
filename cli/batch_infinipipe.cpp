// SPDX-License-Identifier: Apache-2.0
// penstock batch split, chunks, checkpoint: InfiniPipe's algorithms.
#include <algorithm>
#include <numeric>

#include "base/words.h"
#include "batch/checkpoint_plan.h"
#include "batch/chunk_schedule.h"
#include "batch/micro_batch_times.h"
#include "batch/split_sequences.h"
#include "cli/batch.h"
#include "cli/batch_samples.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::vector<int> chunks_of(const JsonNode& instance) {
  constexpr std::int64_t kMost = 100'000;
  const JsonNode list = required(instance, "chunks");
  const std::vector<std::int64_t> counts = wholes(list, 1);
  if (std::any_of(counts.begin(), counts.end(), [](std::int64_t n) { return n > kMost; }) ||
      std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) > kMost)
    list.fail(concat("has more than ", kMost, " chunks"));
  return {counts.begin(), counts.end()};
}

void check_chunks(const JsonNode& node, std::size_t entries, std::size_t chunks) {
  if (entries != chunks) node.fail(concat("has ", entries, " entries, there are ", counted(chunks, "chunk")));
}

// Chunks that all take as long, or "forward", and as read_micro_batches() says "backward" and "sizes", as lists of one for each.
MicroBatches work_of_chunks(const JsonNode& instance, std::size_t count) {
  if (!is_given(instance, "forward") || !instance.at("forward").value().is_array()) {
    const double forward = figure_or(instance, "forward", 1), backward = figure_or(instance, "backward", 2 * forward);
    return {std::vector<double>(count, forward), std::vector<double>(count, backward), std::vector<double>(count, 1)};
  }
  MicroBatches work = read_micro_batches(instance);
  check_chunks(instance.at("forward"), work.count(), count);
  return work;
}

// One figure for all chunks, or a list of one for each.
std::vector<double> figures_of_chunks(const JsonNode& node, std::size_t count) {
  if (!node.value().is_array()) return std::vector<double>(count, figure(node));
  std::vector<double> out = figures(node);
  check_chunks(node, out.size(), count);
  return out;
}

BatchAnswer solve_chunks(const JsonNode& instance) {
  const std::vector<int> chunks = chunks_of(instance);
  const MicroBatches work = work_of_chunks(instance, static_cast<std::size_t>(std::accumulate(chunks.begin(), chunks.end(), 0)));
  const int warm_up = small_whole_or(instance, "warm_up", 0);
  Schedule schedule = chunk_schedule(small_whole(instance, "actors"), chunks, warm_up);
  const TableTime time = time_micro_batches(schedule, work);
  return {{{"makespan", exact(time.makespan)}, {"peak_live", exact(time.peak_live)}}, std::move(schedule)};
}

BatchAnswer solve_checkpoint(const JsonNode& instance) {
  const std::vector<int> chunks = chunks_of(instance);
  const auto count = static_cast<std::size_t>(std::accumulate(chunks.begin(), chunks.end(), 0));
  const std::vector<double> full = figures_of_chunks(required(instance, "full"), count),
                            saved = figures_of_chunks(required(instance, "saved_per_layer"), count);
  CheckpointProblem problem{
      .actors = small_whole(instance, "actors"), .layers = small_whole(instance, "layers"), .room = figure(required(instance, "room"))};
  for (std::size_t c = 0; c < count; ++c) problem.memory.push_back({full[c], saved[c]});
  const auto fail = [&] {
    throw Error(concat("a room of ", number(problem.room), " is too small, even if every chunk recomputes all ",
                       problem.layers / problem.actors, " layers of a stage"),
                {}, "give more room, or fewer chunks at once");
  };
  if (!is_given(instance, "delay")) {
    const CheckpointPlan plan = plan_checkpoints(problem, chunks);
    if (!plan.feasible) fail();
    return {{{"total", plan.total}, {"per_chunk", plan.per_chunk}, {"proven", plan.proven}}};
  }
  const CheckpointGroups best = group_by_chunks(problem, chunks, figure(instance.at("delay")));
  if (best.groups.empty()) fail();
  nlohmann::ordered_json groups = nlohmann::ordered_json::array(), totals = groups;
  for (const CheckpointGroup& group : best.groups) {
    nlohmann::ordered_json& of_group = groups.emplace_back(nlohmann::ordered_json::array());
    for (const std::size_t sequence : group.sequences) of_group.push_back(chunks[sequence]);
    totals.push_back(group.plan.total);
  }
  return {{{"time", exact(best.time)}, {"groups", groups}, {"totals", totals}}};
}

BatchAnswer solve_split(const JsonNode& instance) {
  const SequenceCosts costs{.a1 = figure_or(instance, "a1", 0), .a2 = figure_or(instance, "a2", 0)};
  if (costs.a1 + costs.a2 == 0) instance.fail("has no costs", "give \"a1\" and \"a2\"");
  const SplitSequences split = split_sequences(wholes(required(instance, "lengths"), 1), small_whole(instance, "pieces"), costs,
                                               figure_or(instance, "capacity", kInfinity));
  nlohmann::ordered_json sequences = nlohmann::ordered_json::array(), times = sequences;
  for (const std::vector<Chunk>& sequence : split.sequences) {
    nlohmann::ordered_json& chunks = sequences.emplace_back(nlohmann::ordered_json::array());
    for (const Chunk& chunk : sequence) {
      nlohmann::ordered_json& tokens = chunks.emplace_back(nlohmann::ordered_json::array());
      if (chunk.tokens > 0) tokens.push_back(chunk.tokens);
      for (const std::int64_t length : chunk.shorts) tokens.push_back(length);
      times.push_back(exact(chunk.time(costs)));
    }
  }
  return {{{"bounds", exact(split.bounds)}, {"sequences", sequences}, {"times", times}}};
}

}  // namespace

std::vector<BatchKind> infinipipe_kinds() {
  return {{"split",
           "long sequences into chunks, short ones into packs (InfiniPipe)",
           {"lengths", "pieces", "a1", "a2", "capacity"},
           solve_split},
          {"chunks",
           "the order of the chunks of sequences (InfiniPipe)",
           {"actors", "chunks", "forward", "backward", "sizes", "warm_up"},
           solve_chunks},
          {"checkpoint",
           "how many layers each chunk recomputes to keep a stage's room (InfiniPipe)",
           {"actors", "chunks", "layers", "full", "saved_per_layer", "room", "delay"},
           solve_checkpoint}};
}

}  // namespace penstock
