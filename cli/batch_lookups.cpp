// SPDX-License-Identifier: Apache-2.0
// penstock batch prefetch, window, tables: NestPipe's batches of which rows are looked up ahead, its window of frozen tables, and where
// tables lie.
#include <cmath>

#include "base/text.h"
#include "batch/lookups.h"
#include "batch/table_placement.h"
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

BatchAnswer solve_prefetch(const JsonNode& instance) {
  const PrefetchProblem problem{.lanes = figures(required(instance, "lanes")),
                                .batches = small_whole(instance, "batches"),
                                .buffers = small_whole_or(instance, "buffers", 2),
                                .synchronise = figure_or(instance, "synchronise", 0)};
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

std::vector<TableDevice> table_devices(const JsonNode& instance) {
  std::vector<TableDevice> out;
  const std::vector<double> bandwidth = figures(required(instance, "bandwidth"));
  for (const double each : bandwidth) out.emplace_back().bandwidth = each;
  const auto read = [&](const char* key, double TableDevice::* member) {
    if (!is_given(instance, key)) return;
    const std::vector<double> values = figures(instance.at(key));
    if (values.size() != out.size())
      instance.at(key).fail(concat("has ", values.size(), " entries, and \"bandwidth\" ", out.size()), "give one for each device");
    for (std::size_t d = 0; d < out.size(); ++d) out[d].*member = values[d];
  };
  read("memory", &TableDevice::memory);
  read("dense", &TableDevice::dense);
  return out;
}

BatchAnswer solve_tables(const JsonNode& instance) {
  PlacementProblem problem;
  required(instance, "tables").each_element([&](const JsonNode& table) {
    const std::vector<double> values = figures(table);
    if (values.size() != 3) table.fail(concat("has ", values.size(), " numbers"), "give rows, width and lookups per sample");
    problem.tables.push_back({values[0], values[1], values[2]});
  });
  problem.devices = table_devices(instance);
  problem.batch = figure(required(instance, "batch"));
  problem.element = figure_or(instance, "element", problem.element);
  problem.passes = figure_or(instance, "passes", problem.passes);
  problem.copies = figure_or(instance, "copies", problem.copies);
  problem.link = figure_or(instance, "link", problem.link);
  problem.overlap = figure_or(instance, "overlap", problem.overlap);
  const TablePlacement best = place_tables(problem);
  nlohmann::ordered_json lookups = nlohmann::ordered_json::array();
  for (std::size_t d = 0; d < best.reads.size(); ++d) lookups.push_back(rounded(best.reads[d] + best.exchange[d]));
  return {{{"period", rounded(best.period)},
           {"tables", best.devices},
           {"lookups", lookups},
           {"bytes", exact(best.bytes)},
           {"proven", best.proven}}};
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
           solve_window},
          {"tables",
           "tables of embeddings on devices, whole or by rows, for the shortest step with rows looked up ahead",
           {"tables", "batch", "bandwidth", "memory", "dense", "link", "overlap", "element", "passes", "copies"},
           solve_tables}};
}

}  // namespace penstock
