// penstock batch prefetch, window: NestPipe's batches of which rows are looked up ahead, and its window of frozen tables.
#include <cmath>

#include "base/text.h"
#include "batch/lookups.h"
#include "cli/batch.h"
#include "report/table.h"

namespace penstock {
namespace {

// Sums of thirds that should be whole are.
nlohmann::ordered_json rounded(double value) {
  constexpr double kParts = 1e9;
  return exact(std::round(value * kParts) / kParts);
}

BatchAnswer answer_of(const LaneTable& table, const std::vector<std::string>& lanes, nlohmann::ordered_json values) {
  BatchAnswer out{std::move(values), table.schedule};
  Timeline timeline = timeline_of(table.schedule, table.shape, table.costs, table.time);
  timeline.title = table.schedule.name;
  timeline.devices = lanes;
  timeline.seconds = false;
  timeline.memory.clear();
  out.timeline = std::move(timeline);
  return out;
}

std::vector<std::string> lane_names(std::size_t count) {
  const std::vector<std::string> five = {"prefetch", "copy", "routing", "retrieval", "compute"};
  if (count == five.size()) return five;
  std::vector<std::string> out;
  for (std::size_t lane = 0; lane < count; ++lane) out.push_back(concat("lane ", lane));
  out[count - 2] = "retrieval";
  out[count - 1] = "compute";
  return out;
}

int count_or(const JsonNode& instance, const char* key, int otherwise) {
  return is_given(instance, key) ? small_whole(instance, key) : otherwise;
}

BatchAnswer solve_prefetch(const JsonNode& instance) {
  PrefetchProblem problem;
  problem.lanes = figures(required(instance, "lanes"));
  problem.batches = small_whole(instance, "batches");
  problem.buffers = count_or(instance, "buffers", 2);
  problem.synchronise = figure_or(instance, "synchronise", 0);
  const LaneTable table = prefetched_batches(problem);
  return answer_of(table, lane_names(problem.lanes.size()),
                   {{"time", rounded(table.time.makespan)}, {"period", rounded(period_of(table))}});
}

BatchAnswer solve_window(const JsonNode& instance) {
  FrozenWindow window;
  window.embed = figure(required(instance, "embed"));
  window.dense = figure(required(instance, "dense"));
  window.gradient = figure(required(instance, "gradient"));
  window.microbatches = small_whole(instance, "microbatches");
  const LaneTable table = frozen_window(window);
  return answer_of(table, {"exchange", "dense"},
                   {{"time", rounded(table.time.makespan)}, {"exposed", rounded(table.time.makespan - window.dense)}});
}

}  // namespace

std::vector<BatchKind> lookup_kinds() {
  return {{"prefetch",
           "batches whose embeddings are looked up ahead, in lanes and buffers (NestPipe)",
           {"lanes", "batches", "buffers", "synchronise"},
           solve_prefetch},
          {"window",
           "a step's micro-batches whose embeddings are exchanged beside dense layers (NestPipe)",
           {"embed", "dense", "gradient", "microbatches"},
           solve_window}};
}

}  // namespace penstock
