// SPDX-License-Identifier: Apache-2.0
#include "batch/lookups.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

constexpr int kMostBatches = 4096;
constexpr double kForwardShare = 1.0 / 3;  // of computing a batch

void check_time(const char* what, double time) {
  if (!std::isfinite(time) || time < 0) throw Error(concat(what, " takes ", number(time)), {}, "give a finite time, 0 or more");
}

void check_count(const char* what, int count, int least, const char* hint) {
  if (count < least || count > kMostBatches)
    throw Error(concat("the number of ", what, " is ", count), {}, concat("from ", least, " to ", kMostBatches, ": ", hint));
}

void check(const PrefetchProblem& problem) {
  if (problem.lanes.size() < 2)
    throw Error(concat(problem.lanes.size(), " lanes are no way from retrieving to computing"), {},
                "give at least two: the last computes, the one before it retrieves rows");
  for (const double time : problem.lanes) check_time("a lane", time);
  check_time("synchronising", problem.synchronise);
  check_count("batches", problem.batches, 2, "a period lies between two");
  check_count("buffers", problem.buffers, 1, "a batch is retrieved into one");
}

StageCosts computing(double time) {
  StageCosts out;
  out.of(Kind::F) = time * kForwardShare;
  out.of(Kind::B) = time - out.of(Kind::F);
  return out;
}

// A chain, of which the stages from `backward` on go back.
StageShape chain_back_to(std::int32_t stages, std::int32_t backward) {
  StageShape out = chain(stages);
  for (std::int32_t s = 0; s < backward; ++s) out.has_backward[s] = false;
  return out;
}

// A micro-batch enters as soon as there is a place, and each that leaves gives its place to the next.
std::vector<Action> with_places(std::int32_t stage, int microbatches, int places) {
  std::vector<Action> row;
  take_turns(microbatches, places, [&](Kind kind, int m) { row.push_back({stage, kind, m}); });
  return row;
}

// One after the other through all of these stages and back.
std::vector<Action> in_turn(std::int32_t first, std::int32_t last, int microbatches) {
  std::vector<Action> row;
  for (std::int32_t m = 0; m < microbatches; ++m) {
    for (std::int32_t s = first; s <= last; ++s) row.push_back({s, Kind::F, m});
    for (std::int32_t s = last; s >= first; --s) row.push_back({s, Kind::B, m});
  }
  return row;
}

LaneTable timed(LaneTable table) {
  validate(table.schedule, table.shape);
  table.time = time_table(table.schedule, table.shape, table.costs, {.record = true});
  return table;
}

}  // namespace

LaneTable prefetched_batches(const PrefetchProblem& problem) {
  check(problem);
  const bool patches = problem.synchronise > 0 && problem.buffers > 1;
  const auto lanes = static_cast<std::int32_t>(problem.lanes.size());
  const std::int32_t retrieval = lanes - 2, last = patches ? lanes : lanes - 1;
  LaneTable out;
  out.shape = chain_back_to(last + 1, retrieval);
  out.schedule.name = "prefetched batches";
  out.schedule.forward_times.assign(retrieval, 1);
  for (std::int32_t lane = 0; lane < retrieval; ++lane)
    for (std::int32_t b = 0; b < problem.batches; ++b) {
      if (b == 0) out.schedule.actors.emplace_back();
      out.schedule.actors[lane].push_back({lane, Kind::F, b});
    }
  out.schedule.actors.push_back(with_places(retrieval, problem.batches, std::min(problem.buffers, problem.batches)));
  out.schedule.actors.push_back(in_turn(retrieval + 1, last, problem.batches));
  // The first batch is of a class of its own, as it needs no patch.
  for (const bool is_first : {true, false}) {
    for (std::int32_t lane = 0; lane <= retrieval; ++lane) out.costs.stages.emplace_back().of(Kind::F) = problem.lanes[lane];
    if (patches) out.costs.stages.emplace_back().of(Kind::F) = is_first ? 0 : problem.synchronise;
    out.costs.stages.push_back(computing(problem.lanes.back()));
  }
  out.costs.first.assign(problem.batches, last + 1);
  out.costs.first[0] = 0;
  return timed(std::move(out));
}

double period_of(const LaneTable& prefetched) {
  double before = 0, end = 0;
  const std::size_t lane = prefetched.schedule.actors.size() - 1;
  const auto stage = static_cast<std::int32_t>(prefetched.shape.predecessors.size()) - 1;
  for (std::size_t i = 0; i < prefetched.schedule.actors[lane].size(); ++i) {
    const Action& action = prefetched.schedule.actors[lane][i];
    if (action.stage != stage || action.kind != Kind::B) continue;
    before = std::exchange(end, prefetched.time.end[lane][i]);
  }
  return end - before;
}

LaneTable frozen_window(const FrozenWindow& window) {
  check_time("embedding", window.embed);
  check_time("what is dense", window.dense);
  check_time("a gradient", window.gradient);
  check_count("micro-batches", window.microbatches, 1, "they share a step");
  LaneTable out;
  out.shape = chain(2);
  out.schedule.name = "frozen window";
  out.schedule.actors = {with_places(0, window.microbatches, window.microbatches), in_turn(1, 1, window.microbatches)};
  StageCosts& exchange = out.costs.stages.emplace_back();
  exchange.of(Kind::F) = window.embed / window.microbatches;
  exchange.of(Kind::B) = window.gradient / window.microbatches;
  out.costs.stages.push_back(computing(window.dense / window.microbatches));
  return timed(std::move(out));
}

}  // namespace penstock
