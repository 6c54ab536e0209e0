// SPDX-License-Identifier: Apache-2.0
// The planner that searches: never slower than DynaPipe under the same limit, below it where that wastes time, and never above the limit.
#include "batch/searched_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/text.h"
#include "batch/inject.h"
#include "batch/measured_costs.h"
#include "batch/plan_batch.h"
#include "search/search_classes.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;
using Numbers = std::vector<double>;

constexpr double kClose = 1e-9;

SearchProblem problem_of(int actors, const MicroBatches& work, double cap, bool split) {
  return {.shape = chain(actors),
          .actors = actors,
          .microbatches = static_cast<int>(work.count()),
          .costs = table_costs(actors, work),
          .memory_limit = cap,
          .split = split};
}

// DynaPipe's table, whose micro-batches have their own numbers.
Schedule dynapipe_table(int actors, const MicroBatches& work, double cap) {
  Injection found = inject(actors, work, groups_of_like(work, usual_groups(work.count())), cap);
  for (auto& row : found.schedule.actors)
    for (Action& action : row) action.microbatch = static_cast<std::int32_t>(found.order[at(action.microbatch)]);
  return found.schedule;
}

void expect_to_keep(const SearchProblem& problem, const SearchResult& found, const std::string& where) {
  validate(found.schedule, problem.shape, problem.microbatches);
  const TableTime time = time_table(found.schedule, problem.shape, problem.costs, {.network = problem.network});
  EXPECT_EQ(time.makespan, found.time.makespan) << where;
  EXPECT_GE(time.makespan, found.lower_bound * (1 - kClose)) << where;
  for (const double peak : time.peak_live) EXPECT_LE(peak, problem.memory_limit * (1 + kClose)) << where;
}

// DynaPipe's rule for the cap takes 36, 45, 51 and 96 here.
TEST(SearchedTable, CapsOfEqualMicroBatches) {
  const MicroBatches ones{Numbers(8, 1), Numbers(8, 2), Numbers(8, 1)};
  const auto makespan = [&](double cap) {
    const SearchProblem problem = problem_of(4, ones, cap, true);
    const SearchResult found = search_schedule(problem, {.moves = 10000, .given = {dynapipe_table(4, ones, cap)}});
    expect_to_keep(problem, found, concat("cap ", cap));
    return found.time.makespan;
  };
  EXPECT_EQ(makespan(4), 27);
  EXPECT_EQ(makespan(3), 31);
  EXPECT_EQ(makespan(2), 41);
  EXPECT_EQ(makespan(1), 72);
}

MicroBatches random_micro_batches(Random& random, int most) {
  MicroBatches work;
  for (int m = test::draw(random, 1, most); m > 0; --m) {
    work.forward.push_back(test::draw(random, 1, 9));
    work.backward.push_back(2 * work.forward.back());
    work.size.push_back(test::coin(random, 0.5) ? work.forward.back() : test::draw(random, 1, 5));
  }
  return work;
}

TEST(SearchedTable, IsNeverSlowerThanDynaPipe) {
  constexpr unsigned kSeed = 61;
  Random random(kSeed);
  int faster = 0;
  for (int round = 0; round < test::rounds(200); ++round) {
    const int actors = test::draw(random, 1, 4);
    const MicroBatches work = random_micro_batches(random, 12);
    const double cap = *std::max_element(work.size.begin(), work.size.end()) + test::draw(random, 0, 12);
    const SearchProblem problem = problem_of(actors, work, cap, test::coin(random, 0.5));
    const Schedule theirs = dynapipe_table(actors, work, cap);
    const SearchResult found = search_schedule(problem, {.seed = static_cast<std::uint64_t>(round), .moves = 100, .given = {theirs}});
    const std::string where = concat("seed ", kSeed, ", round ", round);
    expect_to_keep(problem, found, where);
    const double limit = time_table(theirs, problem.shape, problem.costs).makespan;
    EXPECT_LE(found.time.makespan, limit) << where;
    faster += found.time.makespan < limit ? 1 : 0;
  }
  EXPECT_GT(faster, test::rounds(100));
}

// Every order of every row of two actors.
double least_makespan(const SearchProblem& problem) {
  std::vector<Action> row;
  for (std::int32_t m = 0; m < problem.microbatches; ++m)
    for (const Kind kind : {Kind::F, Kind::B}) row.push_back({0, kind, m});
  std::sort(row.begin(), row.end());
  std::vector<std::vector<Action>> rows;
  do {
    const auto is_wrong = [&](const Action& a) {
      return a.kind == Kind::B && std::find(std::find(row.begin(), row.end(), a), row.end(), Action{0, Kind::F, a.microbatch}) != row.end();
    };
    if (std::none_of(row.begin(), row.end(), is_wrong)) rows.push_back(row);
  } while (std::next_permutation(row.begin(), row.end()));
  double best = kInfinity;
  for (const auto& first : rows) {
    for (const auto& second : rows) {
      Schedule table{.name = "brute", .actors = {first, second}, .cells = {}};
      for (Action& action : table.actors[1]) action.stage = 1;
      try {
        validate(table, problem.shape, problem.microbatches);
      } catch (const Error&) {
        continue;  // a cycle
      }
      const TableTime time = time_table(table, problem.shape, problem.costs);
      if (std::ranges::all_of(time.peak_live, [&](double peak) { return peak <= problem.memory_limit; }))
        best = std::min(best, time.makespan);
    }
  }
  return best;
}

TEST(SearchedTable, IsNearlyTheBestOfAll) {
  constexpr unsigned kSeed = 62;
  Random random(kSeed);
  int best = 0;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const MicroBatches work = random_micro_batches(random, 3);
    const double cap = *std::max_element(work.size.begin(), work.size.end()) + test::draw(random, 0, 6);
    const SearchProblem problem = problem_of(2, work, cap, false);
    const double least = least_makespan(problem), found = search_schedule(problem, {.moves = 300}).time.makespan;
    EXPECT_GE(found, least * (1 - kClose)) << "seed " << kSeed << ", round " << round;
    EXPECT_LE(work_bound(problem), least * (1 + kClose)) << "seed " << kSeed << ", round " << round;
    best += found <= least * (1 + kClose) ? 1 : 0;
  }
  EXPECT_GE(best, kRounds - 1);
}

// A table that every stage recomputes holds next to nothing; so a limit of one micro-batch costs R and not the overlap.
TEST(SearchedTable, RecomputesWhereThatIsFaster) {
  const MicroBatches ones{Numbers(8, 1), Numbers(8, 2), Numbers(8, 1)};
  SearchProblem problem = problem_of(4, ones, 2, false);
  const double without = search_schedule(problem, {.moves = 400}).time.makespan;
  problem.recompute = true;
  const SearchResult with = search_schedule(problem, {.moves = 400});
  expect_to_keep(problem, with, "recompute");
  EXPECT_LT(with.time.makespan, without);
}

TEST(SearchedTable, SeedsGiveEqualTables) {
  Random random(63);
  const MicroBatches work = random_micro_batches(random, 12);
  const SearchProblem problem = problem_of(3, work, 12, true);
  const SearchResult a = search_schedule(problem, {.seed = 7, .moves = 400}), b = search_schedule(problem, {.seed = 7, .moves = 400});
  EXPECT_EQ(print(a.schedule), print(b.schedule));
}

TEST(SearchedTable, BadProblems) {
  const auto check = [](const MicroBatches& work, double cap) {
    return message_of([&] { search_schedule(problem_of(2, work, cap, true)); });
  };
  EXPECT_EQ(check({}, 1), "there are no micro-batches");
  EXPECT_EQ(check({{3, 1}, {1, 1}, {3, 1}}, 2),
            "micro-batch 0 holds 3.0 on stage 0, above the limit of 2.0\n"
            "  hint: raise the limit, or cut the batch into smaller micro-batches");
  EXPECT_EQ(check({{1, -1}, {1, 1}, {1, 1}}, 2), "micro-batch 1 takes -1.0 on stage 0; it must be a number and not negative");
  EXPECT_EQ(check({{1, std::nan("")}, {1, 1}, {1, 1}}, 2), "micro-batch 1 takes nan on stage 0; it must be a number and not negative");
  SearchProblem offloading = problem_of(2, {{1, 1}, {1, 1}, {1, 1}}, 2, true), two_stages = offloading;
  offloading.offload = true;
  two_stages.actors = 1;
  for (const SearchProblem& problem : {offloading, two_stages})
    EXPECT_EQ(message_of([&] { search_schedule(problem); }),
              "a table of micro-batches that differ is searched for a chain of one stage on each actor, and one step\n"
              "  other stages, several steps, offloading and gathers are not known to that search\n"
              "  hint: leave them out, or let all micro-batches cost alike");
  SearchProblem counting = problem_of(2, {{1, 1}, {1, 1}, {1, 1}}, 2, true);
  counting.costs.stages[1].parameters = 3;
  EXPECT_EQ(message_of([&] { search_schedule(counting); }),
            "parameters of stage 1 count 3.0, and micro-batches differ\n"
            "  the search of such tables counts activations alone\n"
            "  hint: take parameters off the limit");
}

SearchedBatchProblem random_batch(Random& random) {
  SearchedBatchProblem problem;
  std::int64_t longest = 0, tokens = 0;
  const bool pairs = test::coin(random, 0.3);
  for (int n = test::draw(random, 1, 24); n > 0; --n) {
    problem.samples.push_back({test::draw(random, 1, test::coin(random, 0.2) ? 512 : 64), pairs ? test::draw(random, 0, 64) : 0});
  }
  problem.ragged = test::coin(random, 0.5);
  if (!problem.ragged) problem.samples = padded(problem.samples, pairs, problem.round);
  for (const SampleLengths& sample : problem.samples) {
    const std::int64_t whole = (sample.input + 7) / 8 * 8 + (sample.target + 7) / 8 * 8;
    longest = std::max(longest, whole);
    tokens += whole;
  }
  problem.order = longest_first(problem.samples);
  problem.actors = test::draw(random, 1, 4);
  problem.costs = stage_costs({.fixed = 30, .linear = 4, .quadratic = 1024}, problem.actors);
  problem.split = test::coin(random, 0.3);
  problem.recompute = test::coin(random, 0.2);
  problem.candidates = 60;
  if (test::coin(random, 0.8))
    problem.limit = static_cast<double>(test::coin(random, 0.3) ? longest : longest + test::draw(random, 0, static_cast<int>(tokens)));
  return problem;
}

// Caps down to one micro-batch; 10,000 batches where PENSTOCK_SOAK is set.
TEST(SearchedBatch, KeepsTheLimitAndEverySample) {
  constexpr unsigned kSeed = 64;
  Random random(kSeed);
  const int rounds = test::is_soak() ? 10'000 : test::rounds(200);
  for (int round = 0; round < rounds; ++round) {
    const SearchedBatchProblem problem = random_batch(random);
    const std::string where = concat("seed ", kSeed, ", round ", round);
    const PlannedBatch plan = search_batch(problem);
    ASSERT_EQ(plan.samples.size(), plan.loads.size());
    validate(plan.schedule, chain(problem.actors), static_cast<int>(plan.loads.size()));
    std::vector<std::size_t> found, all(problem.samples.size());
    TableCosts costs;
    for (std::size_t m = 0; m < plan.loads.size(); ++m) {
      ASSERT_FALSE(plan.samples[m].empty()) << where;
      found.insert(found.end(), plan.samples[m].begin(), plan.samples[m].end());
      const BatchLoad load =
          problem.ragged ? ragged_load(problem.samples, plan.samples[m], problem.round) : padded_load(plan.loads[m].shape);
      EXPECT_EQ(load.shape, plan.loads[m].shape) << where;
      for (const std::size_t i : plan.samples[m]) {
        const bool fits = problem.samples[i].input <= load.shape.input && problem.samples[i].target <= load.shape.target;
        EXPECT_TRUE(fits) << where;
      }
      costs.first.push_back(static_cast<std::int32_t>(costs.stages.size()));
      for (const StageCosts& stage : problem.costs(load)) costs.stages.push_back(stage);
    }
    std::sort(found.begin(), found.end());
    std::iota(all.begin(), all.end(), std::size_t{0});
    ASSERT_EQ(found, all) << where;
    const TableTime time = time_table(plan.schedule, chain(problem.actors), costs);
    EXPECT_NEAR(time.makespan, plan.time, kClose * plan.time) << where;
    for (const double peak : time.peak_live) EXPECT_LE(peak, problem.limit * (1 + kClose)) << where;
  }
}

// Four equal samples of two actors, F 20 and B 40, as 1F1B has two of them live: what is computed again is as little as the limit allows.
TEST(DynaPipeBatch, ComputesAgainWhatTheLimitAsksFor) {
  const auto holds = [](double of_a_token, double again) {
    LoadFit live;
    live.per_amount[2] = of_a_token;
    return std::vector<HeldFit>(2, {live, live, live, again});
  };
  const HeldFits held = {{Recompute::none, holds(1, 0)}, {Recompute::selective, holds(0.6, 0.25)}, {Recompute::inputs, holds(0.1, 1)}};
  SearchedBatchProblem problem{.samples = std::vector<SampleLengths>(4, {60, 0}),
                               .order = {0, 1, 2, 3},
                               .actors = 2,
                               .costs = holding(stage_costs({.linear = 1}, 2), held, /*bytes=*/false),
                               .modes = {Recompute::none, Recompute::selective, Recompute::inputs}};
  const auto expect = [&](double limit, double time, Recompute mode) {
    problem.limit = limit;
    const PlannedBatch plan = dynapipe_batch(problem);
    EXPECT_NEAR(plan.time, time, kClose) << limit;
    EXPECT_LE(plan.peak, limit);
    for (const BatchLoad& load : plan.loads) EXPECT_EQ(load.shape.recompute, mode) << limit;
  };
  expect(kInfinity, 5 * 60, Recompute::none);
  expect(120, 5 * 60, Recompute::none);
  expect(119, 5 * 65, Recompute::selective);
  expect(71, 5 * 80, Recompute::inputs);
  problem.modes.pop_back();
  expect(71, 4 * 120, Recompute::none);  // one at a time
  problem.limit = 59;
  EXPECT_NE(message_of([&] { dynapipe_batch(problem); }), "no error") << "a backward has all that its forward had";
}

TEST(SearchedBatch, IsNeverSlowerThanDynaPipe) {
  constexpr unsigned kSeed = 65;
  Random random(kSeed);
  int faster = 0, compared = 0;
  for (int round = 0; round < test::rounds(100); ++round) {
    const SearchedBatchProblem problem = random_batch(random);
    if (problem.ragged) continue;
    const double theirs = dynapipe_batch(problem).time, ours = search_batch(problem).time;
    EXPECT_LE(ours, theirs) << "seed " << kSeed << ", round " << round;
    ++compared;
    faster += ours < theirs * (1 - kClose) ? 1 : 0;
  }
  EXPECT_GT(faster, compared / 3);
}

}  // namespace
}  // namespace penstock
