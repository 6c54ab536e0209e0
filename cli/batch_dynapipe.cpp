// SPDX-License-Identifier: Apache-2.0
// penstock batch cut, order, partition, cyclic, inject: DynaPipe's algorithms.
#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "batch/balance.h"
#include "batch/cut_batch.h"
#include "batch/cyclic.h"
#include "batch/inject.h"
#include "batch/plan_batch.h"
#include "batch/tour_order.h"
#include "cli/batch_samples.h"
#include "penstock/error.h"
#include "penstock/table.h"

namespace penstock {
namespace {

using ordered = nlohmann::ordered_json;

ShapeCosts grid_of(const JsonNode& list) {
  std::vector<CostPoint> points;
  list.each_element([&](const JsonNode& node) {
    node.check_keys({"samples", "input", "target", "time", "stored", "peak"});
    const double stored = figure_or(node, "stored", 0);
    points.push_back({{required(node, "samples").whole(1), required(node, "input").whole(1), whole_or(node, "target", 0, 0)},
                      {figure(required(node, "time")), stored, figure_or(node, "peak", stored)}});
  });
  return grid_costs(points);
}

// A formula or a grid, in the instance or in one of its modes.
ShapeCosts costs_of(const JsonNode& node) {
  if (is_given(node, "grid")) return grid_of(node.at("grid"));
  return formula_costs(read_formula(node));
}

std::vector<RecomputeMode> modes_of(const JsonNode& instance) {
  std::vector<RecomputeMode> modes;
  if (!is_given(instance, "modes")) return {{"none", costs_of(instance)}};
  instance.at("modes").each_element([&](const JsonNode& node) {
    node.check_keys({"name", "fixed", "linear", "quadratic", "stored", "peak", "grid"});
    modes.push_back({required(node, "name").text(), costs_of(node)});
  });
  if (modes.empty()) instance.at("modes").fail("is empty");
  return modes;
}

BatchCutOptions cut_options_of(const JsonNode& instance) {
  return {.stages = small_whole(instance, "actors"),
          .replicas = whole_or(instance, "replicas", 1, 1),
          .chunks = whole_or(instance, "chunks", 1, 1),
          .interval = figure_or(instance, "interval", 0),
          .stored_limit = figure_or(instance, "limit_tokens", kInfinity),
          .peak_limit = figure_or(instance, "available_tokens", kInfinity)};
}

ordered json_of(const BatchCut& cut, const std::vector<std::size_t>& order) {
  ordered shapes = ordered::array();
  for (const BatchShape& shape : cut.shapes) shapes.push_back({shape.samples, shape.input, shape.target});
  return {{"objective", exact(cut.objective)},
          {"t_max", exact(cut.longest)},
          {"sum", exact(cut.sum)},
          {"begins", cut.begins},
          {"shapes", shapes},
          {"order", order}};
}

// The cut's micro-batches in 1F1B on one replica's actors; a forward counts a third of a micro-batch's time, as in plan_batch. There is no
// such table where actors have chunks or micro-batches are divided among replicas.
BatchAnswer answer_of(const BatchCut& cut, ordered values, const ShapeCosts& costs, const BatchCutOptions& options) {
  if (options.chunks > 1 || options.replicas > 1) return {std::move(values)};
  MicroBatches work;
  for (const BatchShape& shape : cut.shapes) {
    const double time = costs(shape).value().time;
    work.forward.push_back(time / 3);
    work.backward.push_back(time * 2 / 3);
    work.size.push_back(1);
  }
  BatchAnswer out{std::move(values)};
  out.table = make_schedule("1f1b", {.actors = options.stages, .microbatches = static_cast<int>(work.count())});
  const StageShape shape = shape_of(*out.table);
  const TableCosts times = table_costs(options.stages, work);
  out.timeline =
      timeline_of(*out.table, shape, times,
                  time_table(*out.table, shape, times, {.network = one_lane_each(options.stages), .disturbance = {}, .record = true}));
  out.timeline->title = concat("cut into ", counted(static_cast<std::int64_t>(work.count()), "micro-batch"));
  out.timeline->seconds = false;
  return out;
}

BatchAnswer solve_cut(const JsonNode& instance) {
  const auto [samples, decoder] = read_lengths(instance);
  const std::vector<std::size_t> order = read_order(instance, samples);
  const std::vector<SampleLengths> as_run = padded(samples, decoder, whole_or(instance, "round", 1, 8));
  const std::vector<RecomputeMode> modes = modes_of(instance);
  const BatchCutOptions options = cut_options_of(instance);
  if (is_given(instance, "memory")) {
    const FittedCut fitted = fit_batch(as_run, order, modes, figure(instance.at("memory")), options);
    ordered values = json_of(fitted.cut, order);
    values["mode"] = modes[fitted.mode].name;
    values["limit"] = exact(fitted.limit);
    return answer_of(fitted.cut, std::move(values), modes[fitted.mode].costs, options);
  }
  if (modes.size() > 1)
    instance.fail("has several modes, but no key \"memory\"", "the modes are tried until the batch fits into \"memory\"");
  const std::optional<BatchCut> cut = cut_batch(as_run, order, modes[0].costs, options);
  if (!cut) fail_no_cut(as_run, modes, options);
  return answer_of(*cut, json_of(*cut, order), modes[0].costs, options);
}

BatchAnswer solve_plan(const JsonNode& instance) {
  const auto [samples, decoder] = read_lengths(instance);
  const BatchProblem problem{.samples = padded(samples, decoder, whole_or(instance, "round", 1, 8)),
                             .order = read_order(instance, samples),
                             .modes = modes_of(instance),
                             .cut = cut_options_of(instance),
                             .available = figure_or(instance, "memory", kInfinity),
                             .latency = figure_or(instance, "latency", 0),
                             .seed = seed_of(instance)};
  const BatchPlan plan = plan_batch(problem);
  ordered micro_batches = ordered::array(), modes = micro_batches, schedules = micro_batches, times = micro_batches;
  for (const ReplicaPlan& replica : plan.replicas) {
    micro_batches.push_back(replica.micro_batches);
    modes.push_back(problem.modes[replica.mode].name);
    schedules.push_back(replica.schedule.name);
    times.push_back(exact(replica.time.makespan));
  }
  ordered values = {
      {"time", exact(plan.time)}, {"times", times}, {"schedules", schedules}, {"modes", modes}, {"micro_batches", micro_batches}};
  values.update(json_of(plan.fitted.cut, problem.order));
  return {values};
}

BatchAnswer solve_order(const JsonNode& instance) {
  const TourOrder tour = tour_order(read_lengths(instance).samples, figure_or(instance, "distance", 16));
  return {{{"order", tour.order}, {"length", exact(tour.length)}}};
}

BatchAnswer solve_partition(const JsonNode& instance) {
  const std::vector<double> values = figures(required(instance, "values"));
  const auto bins = balance(values, static_cast<std::size_t>(small_whole(instance, "bins")));
  ordered sums = ordered::array();
  for (const auto& bin : bins) {
    double sum = 0;
    for (const std::size_t i : bin) sum += values[i];
    sums.push_back(exact(sum));
  }
  return {{{"bins", bins}, {"sums", sums}}};
}

Schedule uncapped_1f1b(int actors, const MicroBatches& work, double cap) {
  Schedule schedule = make_schedule("1f1b", {.actors = actors, .microbatches = static_cast<int>(work.count())});
  const std::vector<double> peaks = time_micro_batches(schedule, work).peak_live;
  if (const double most = *std::max_element(peaks.begin(), peaks.end()); most > cap)
    throw Error(concat("1F1B holds ", number(most), " on an actor, above the cap of ", number(cap)), {},
                "take the cyclic order, which waits");
  return schedule;
}

BatchAnswer solve_cyclic(const JsonNode& instance) {
  const MicroBatches work = read_micro_batches(instance);
  const int actors = small_whole(instance, "actors");
  const double cap = figure_or(instance, "cap", kInfinity);
  const std::string name = is_given(instance, "schedule") ? instance.at("schedule").text() : "cyclic";
  if (name != "cyclic" && name != "1f1b") instance.at("schedule").fail(concat("is ", quote(name), "; it must be \"cyclic\" or \"1f1b\""));
  Schedule schedule = name == "1f1b" ? uncapped_1f1b(actors, work, cap) : cyclic_schedule(actors, work.size, cap);
  const TableTime time = time_micro_batches(schedule, work, figure_or(instance, "latency", 0));
  return {{{"makespan", exact(time.makespan)}, {"peak_live", exact(time.peak_live)}}, std::move(schedule)};
}

// "groups": null for groups of equals, a number for so many groups of like ones, or lists of micro-batches.
MicroBatchGroups groups_of(const JsonNode& instance, const MicroBatches& work) {
  if (!is_given(instance, "groups")) return groups_of_equals(work);
  const JsonNode node = instance.at("groups");
  if (node.value().is_number()) return groups_of_like(work, static_cast<std::size_t>(node.whole(1)), seed_of(instance));
  MicroBatchGroups groups;
  std::vector<bool> named(work.count(), false);
  node.each_element([&](const JsonNode& list) {
    groups.emplace_back();
    list.each_element([&](const JsonNode& m) {
      groups.back().push_back(static_cast<std::size_t>(m.whole(0, static_cast<std::int64_t>(work.count()) - 1)));
      if (named[groups.back().back()]) m.fail(concat("is ", groups.back().back(), ", a micro-batch that is there twice"));
      named[groups.back().back()] = true;
    });
  });
  if (std::find(named.begin(), named.end(), false) != named.end())
    node.fail(concat("leaves out micro-batch ", std::find(named.begin(), named.end(), false) - named.begin()));
  return groups;
}

BatchAnswer solve_inject(const JsonNode& instance) {
  const MicroBatches work = read_micro_batches(instance);
  Injection best = inject(small_whole(instance, "actors"), work, groups_of(instance, work), figure_or(instance, "cap", kInfinity),
                          figure_or(instance, "latency", 0));
  return {
      {{"makespan", exact(best.time.makespan)}, {"order", best.order}, {"peak_live", exact(best.time.peak_live)}, {"held_up", best.capped}},
      std::move(best.schedule)};
}

}  // namespace

std::vector<BatchKind> dynapipe_kinds() {
  const std::vector<std::string> samples = {"lengths", "pairs", "order", "round", "context", "fixed",  "linear",   "quadratic",
                                            "stored",  "peak",  "grid",  "modes", "memory",  "actors", "replicas", "interval"};
  const auto samples_and = [&](std::vector<std::string> keys) {
    keys.insert(keys.begin(), samples.begin(), samples.end());
    return keys;
  };
  return {{"plan", "a whole batch: micro-batches, and a table for each replica (DynaPipe)", samples_and({"latency", "seed"}), solve_plan},
          {"cut", "samples into micro-batches of least time, padding included (DynaPipe)",
           samples_and({"chunks", "limit_tokens", "available_tokens"}), solve_cut},
          {"order", "samples with inputs and targets by a short tour; it takes what cut does (DynaPipe)", samples_and({"distance"}),
           solve_order},
          {"partition", "numbers into bins of nearly equal sums (DynaPipe's replicas)", {"values", "bins"}, solve_partition},
          {"cyclic",
           "the cyclic order of micro-batches that differ (DynaPipe), or 1F1B",
           {"actors", "forward", "backward", "sizes", "cap", "latency", "schedule"},
           solve_cyclic},
          {"inject",
           "the order in which micro-batches enter the cyclic table (DynaPipe)",
           {"actors", "forward", "backward", "sizes", "cap", "latency", "groups", "seed"},
           solve_inject}};
}

}  // namespace penstock
