// SPDX-License-Identifier: Apache-2.0
// DIP's choice of what is computed again: against all choices, and as schedules under their own clock.
#include "batch/module_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/text.h"
#include "batch/module_plan.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

std::vector<double> times_of(const ModuleProblem& problem) {
  std::vector<double> out;
  for (const ModuleMicroBatch& micro_batch : problem.micro_batches) {
    out.insert(out.end(), micro_batch.parts.begin(), micro_batch.parts.end());
    out.push_back(micro_batch.backbone);
  }
  return out;
}

// Every stage of a segment holds what is drawn, of which its layers may save most.
void draw_memory(ModuleProblem& problem, Random& random, int most_layers) {
  for (const ModuleMicroBatch& micro_batch : problem.micro_batches)
    for (std::size_t s = 0; s <= micro_batch.parts.size(); ++s) {
      const int rounds = s < micro_batch.parts.size() ? problem.part_rounds : problem.backbone_rounds;
      auto& own = problem.memory.emplace_back();
      for (int stage = 0; stage < problem.ranks * rounds; ++stage) {
        const int layers = test::draw(random, 0, most_layers), saved = test::draw(random, 0, 3);
        own.push_back({1. * layers * saved + test::draw(random, 1, 4), 1. * saved, layers});
      }
    }
}

ModuleProblem drawn_problem(Random& random) {
  ModuleProblem problem{.ranks = test::draw(random, 1, 3), .micro_batches = {}};
  for (int m = test::draw(random, 1, 4); m > 0; --m) {
    ModuleMicroBatch& micro_batch = problem.micro_batches.emplace_back();
    for (int part = test::draw(random, 0, 2); part > 0; --part) micro_batch.parts.push_back(test::draw(random, 1, 4));
    micro_batch.backbone = test::draw(random, 1, 5);
  }
  problem.part_rounds = test::draw(random, 1, 2);
  problem.backbone_rounds = test::draw(random, 1, 2);
  problem.folded = test::coin(random, 0.3);
  problem.split = test::coin(random, 0.4);
  return problem;
}

// Held from F to the last backward: what is computed again is there from I on.
double held_by_rank(const ModuleProblem& problem, const std::vector<ModuleRun>& rank, const std::vector<std::vector<int>>& again) {
  double now = 0, most = 0;
  for (const ModuleRun& run : rank) {
    const ModuleMemory& memory = problem.memory[at(run.segment)][at(run.stage)];
    const double saved = again[at(run.segment)][at(run.stage)] * memory.saved;
    now += run.kind == Kind::F   ? memory.full - saved
           : run.kind == Kind::I ? saved
           : run.kind == Kind::W ? -memory.full
                                 : saved - memory.full;
    most = std::max(most, now);
  }
  return most;
}

double seconds_again(const ModuleProblem& problem, const std::vector<ModuleRun>& rank, const std::vector<std::vector<int>>& again) {
  double sum = 0;
  for (const ModuleRun& run : rank) {
    const std::size_t segment = at(run.segment), stage = at(run.stage);
    if (run.kind == Kind::F && again[segment][stage] > 0)
      sum += again[segment][stage] * times_of(problem)[segment] / problem.memory[segment][stage].layers;
  }
  return sum;
}

// The least time of all choices for the rank's forwards from the i-th on.
double brute_seconds(const ModuleProblem& problem, const std::vector<ModuleRun>& rank, std::vector<std::vector<int>>& again,
                     std::size_t i) {
  if (i == rank.size()) return held_by_rank(problem, rank, again) <= problem.room + 1e-9 ? seconds_again(problem, rank, again) : kInfinity;
  if (rank[i].kind != Kind::F) return brute_seconds(problem, rank, again, i + 1);
  const ModuleMemory& memory = problem.memory[at(rank[i].segment)][at(rank[i].stage)];
  int& layers = again[at(rank[i].segment)][at(rank[i].stage)];
  double best = kInfinity;
  for (layers = 0; layers <= memory.layers; ++layers) best = std::min(best, brute_seconds(problem, rank, again, i + 1));
  layers = 0;
  return best;
}

std::vector<std::vector<int>> nothing_again(const ModuleProblem& problem) {
  std::vector<std::vector<int>> out;
  for (const auto& of_segment : problem.memory) out.emplace_back(of_segment.size(), 0);
  return out;
}

std::vector<std::vector<int>> all_again(const ModuleProblem& problem) {
  std::vector<std::vector<int>> out;
  for (const auto& of_segment : problem.memory)
    for (auto& own = out.emplace_back(); const ModuleMemory& memory : of_segment) own.push_back(memory.layers);
  return out;
}

TEST(ModuleMemory, LayersAreTheCheapestOfAllChoices) {
  constexpr unsigned kSeed = 81;
  Random random(kSeed);
  int none = 0, chosen = 0;
  for (int round = 0; round < test::rounds(150); ++round) {
    SCOPED_TRACE(concat("seed ", kSeed, ", round ", round));
    ModuleProblem problem = drawn_problem(random);
    const ModuleTable table = search_modules(problem, {.rollouts = 20, .nodes = 100}).table;
    const auto forwards = std::ranges::count(table.ranks[0], Kind::F, &ModuleRun::kind);
    draw_memory(problem, random, forwards <= 6 ? 3 : 1);
    if (forwards > 12) continue;
    const double most = most_held(problem, table);
    double least = 0;
    for (const auto& rank : table.ranks) least = std::max(least, held_by_rank(problem, rank, all_again(problem)));
    double whole = 0;
    for (const auto& rank : table.ranks) whole = std::max(whole, held_by_rank(problem, rank, nothing_again(problem)));
    EXPECT_EQ(most, whole);
    problem.room = std::round(least + test::draw(random, -2, 8) / 10. * (most - least));
    const auto found = layers_again(problem, table, 100'000);
    double best = 0, sum = 0;
    for (const auto& rank : table.ranks) {
      std::vector<std::vector<int>> again = nothing_again(problem);
      best += brute_seconds(problem, rank, again, 0);
      if (!found) continue;
      sum += seconds_again(problem, rank, *found);
      EXPECT_LE(held_by_rank(problem, rank, *found), problem.room + 1e-9);
    }
    ASSERT_EQ(found.has_value(), best < kInfinity);
    none += !found;
    if (!found) continue;
    EXPECT_NEAR(sum, best, 1e-9);
    chosen += best > 0;
    const ModuleTable longer = with_again(problem, table, *found);
    EXPECT_LE(most_held(problem, longer), problem.room + 1e-9);
    EXPECT_GE(longer.makespan, table.makespan);
    EXPECT_LE(longer.makespan, table.makespan + sum + 1e-9);
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(chosen, test::rounds(30));
}

// The table's own clock and that of schedules say the same of backwards that compute some layers again.
TEST(ModuleMemory, SchedulesAreTheirTables) {
  constexpr unsigned kSeed = 82;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(60); ++round) {
    ModuleProblem problem = drawn_problem(random);
    draw_memory(problem, random, 4);
    std::vector<std::vector<int>> again = all_again(problem);
    for (auto& of_segment : again)
      for (int& layers : of_segment) layers = test::draw(random, 0, layers);
    ModuleProblem free = problem;
    free.memory.clear();
    const ModuleTable table = with_again(problem, search_modules(free, {.rollouts = 20, .nodes = 100}).table, again);
    const StageShape shape = shape_of(problem);
    const auto stages = static_cast<std::int32_t>(shape.predecessors.size());
    const std::vector<std::vector<int>> of_shapes = again_of(problem, table);
    const std::int32_t in_part = problem.ranks * problem.part_rounds, text = stages - problem.ranks * problem.backbone_rounds;
    TableCosts costs = costs_by_forward(stages, problem.micro_batches.size(), [&](std::int32_t stage, std::int32_t m) {
      const ModuleMicroBatch& micro_batch = problem.micro_batches[at(m)];
      if (stage >= text) return micro_batch.backbone;
      return at(stage / in_part) < micro_batch.parts.size() ? micro_batch.parts[at(stage / in_part)] : 0;
    });
    for (std::size_t m = 0, segment = 0; m < problem.micro_batches.size(); ++m) {
      const std::size_t parts = problem.micro_batches[m].parts.size();
      for (std::size_t own = 0; own < of_shapes[m].size(); ++own) {  // stages of the micro-batch's own
        const std::size_t part = std::min(own / at(in_part), parts), place = own - part * at(in_part);
        const std::size_t stage = part < parts ? own : at(text) + place;
        StageCosts& cost = costs.stages[at(costs.first[m]) + stage];
        const int layers = problem.memory[segment + part][place].layers;
        const double more = layers > 0 ? of_shapes[m][own] * cost.of(Kind::F) / layers : 0;
        cost.of(Kind::B) += more;
        cost.of(Kind::I) += more;
      }
      segment += parts + 1;
    }
    const TableTime time = time_table(schedule_of(problem, table), shape, costs);
    EXPECT_NEAR(time.makespan, table.makespan, 1e-9) << "seed " << kSeed << ", round " << round;
    for (std::size_t rank = 0; rank < table.ranks.size(); ++rank)
      for (std::size_t i = 0; i < table.ranks[rank].size(); ++i) EXPECT_NEAR(table.ranks[rank][i].begin, time.start[rank][i], 1e-9);
  }
}

// The least makespan of all orders and all choices that keep the room; whole backwards, one round. `done`: how far each segment is.
struct BruteForce {
  const ModuleProblem& problem;
  std::vector<std::vector<int>> again;
  std::vector<double> times;
  double best = kInfinity;

  void choose(std::size_t segment, std::size_t stage) {
    if (segment == problem.memory.size())
      return order(std::vector<std::vector<double>>(times.size()), std::vector<double>(at(problem.ranks)),
                   std::vector<double>(at(problem.ranks)));
    const bool is_last = stage + 1 == problem.memory[segment].size();
    int& layers = again[segment][stage];
    for (layers = 0; layers <= problem.memory[segment][stage].layers; ++layers)
      choose(is_last ? segment + 1 : segment, is_last ? 0 : stage + 1);
    layers = 0;
  }

  void order(const std::vector<std::vector<double>>& ends, const std::vector<double>& free, const std::vector<double>& held) {
    const std::size_t ranks = free.size(), steps = 2 * ranks;
    if (*std::ranges::max_element(free) >= best) return;
    bool all = true;
    std::size_t segment = 0;
    for (const ModuleMicroBatch& micro_batch : problem.micro_batches) {
      const std::size_t first = segment, backbone = first + micro_batch.parts.size();
      for (; segment <= backbone; ++segment) {
        const std::size_t step = ends[segment].size();
        if (step == steps) continue;
        all = false;
        double ready = step > 0 ? ends[segment].back() : 0;
        if (segment == backbone && step == 0)
          for (std::size_t part = first; part < backbone; ++part)
            ready = std::max(ready, ends[part].size() < ranks ? kInfinity : ends[part][ranks - 1]);
        if (segment < backbone && step == ranks) ready = ends[backbone].size() < steps ? kInfinity : ends[backbone].back();
        const std::size_t rank = step < ranks ? step : steps - 1 - step;
        const ModuleMemory& memory = problem.memory[segment][rank];
        const double holds = memory.full - again[segment][rank] * memory.saved;
        if (ready == kInfinity || (step < ranks && held[rank] + holds > problem.room + 1e-9)) continue;
        auto next = ends;
        auto then = free, holding = held;
        const double layer = memory.layers > 0 ? times[segment] / memory.layers : 0;
        then[rank] = std::max(free[rank], ready) + (step < ranks ? times[segment] : 2 * times[segment] + again[segment][rank] * layer);
        holding[rank] += step < ranks ? holds : -holds;
        next[segment].push_back(then[rank]);
        order(next, then, holding);
      }
    }
    if (all) best = std::min(best, *std::ranges::max_element(free));
  }
};

// For small batches it is nearly the fastest of all tables and choices, and none is found only where there is none.
TEST(ModuleMemory, IsNearlyTheFastestOfAll) {
  constexpr unsigned kSeed = 83;
  Random random(kSeed);
  double sum = 0, least = 0;
  int none = 0, again = 0;
  for (int round = 0; round < test::rounds(40); ++round) {
    SCOPED_TRACE(concat("seed ", kSeed, ", round ", round));
    ModuleProblem problem{.ranks = 2, .micro_batches = {}};
    problem.micro_batches.push_back({{test::draw(random, 1, 3) * 1.}, test::draw(random, 1, 4) * 1.});
    problem.micro_batches.push_back({{}, test::draw(random, 1, 5) * 1.});
    draw_memory(problem, random, 1);
    ModuleProblem free = problem;
    free.memory.clear();
    problem.room = std::round(most_held(problem, search_modules(free).table) * test::draw(random, 3, 9) / 10);
    BruteForce brute{problem, nothing_again(problem), times_of(problem)};
    brute.choose(0, 0);
    ModuleResult found;
    const std::string message = test::message_of([&] { found = modules_in_room(problem, search_modules(free), {.rollouts = 100}); });
    ASSERT_EQ(message == "no error", brute.best < kInfinity) << message;
    none += brute.best == kInfinity;
    if (brute.best == kInfinity) continue;
    EXPECT_LE(most_held(problem, found.table), problem.room + 1e-9);
    EXPECT_GE(found.table.makespan, brute.best - 1e-9);
    EXPECT_LE(found.table.makespan, 1.5 * brute.best);
    EXPECT_LE(found.lower_bound, brute.best + 1e-9);
    sum += found.table.makespan;
    least += brute.best;
    again += std::ranges::any_of(found.table.again, [](const auto& of) { return std::ranges::any_of(of, [](int n) { return n > 0; }); });
  }
  EXPECT_LE(sum, 1.05 * least);
  EXPECT_GT(none, 0);
  EXPECT_GT(again, test::rounds(5));
}

TEST(ModuleMemory, NothingKeepsTheRoom) {
  ModuleProblem problem{.ranks = 1, .micro_batches = {{{}, 2}, {{}, 2}}};
  const ModuleResult free = search_modules(problem);
  problem.memory = {{{4, 1, 2}}, {{4, 1, 2}}};
  problem.room = 2;
  EXPECT_EQ(most_held(problem, modules_in_room(problem, free).table), 2);
  EXPECT_EQ(modules_in_room(problem, free).table.makespan, 2 * (3 * 2 + 2));
  problem.room = 1.5;
  EXPECT_EQ(test::message_of([&] { modules_in_room(problem, free); }),
            "no table keeps a room of 1.5 on a rank\n  the fastest without that limit holds 4.0\n"
            "  hint: give more room: a higher batch.memory_limit, or batch.recompute = \"inputs\"");
}

}  // namespace
}  // namespace penstock
