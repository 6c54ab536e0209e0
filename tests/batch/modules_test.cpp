// SPDX-License-Identifier: Apache-2.0
// DIP: the interleaving of parts and backbones; published values, brute force, and tables checked against what runs need of each other.
#include "batch/modules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;

// A rank takes 1 for each image, forward.
ModuleProblem with_images(int ranks, const std::vector<std::int64_t>& images, std::int64_t part, double backbone) {
  ModuleProblem problem{.ranks = ranks, .micro_batches = {}};
  for (const std::int64_t n : images) {
    ModuleMicroBatch& micro_batch = problem.micro_batches.emplace_back(ModuleMicroBatch{{}, backbone});
    for (const std::int64_t size : even_parts(n, part)) micro_batch.parts.push_back(static_cast<double>(size));
  }
  return problem;
}

// Runs of a rank do not overlap, every run is there once, and begins when what it needs has ended.
void expect_runs(const ModuleProblem& problem, const ModuleTable& table) {
  struct Segment {
    std::size_t micro_batch;
    bool backbone;
    double time;
  };
  std::vector<Segment> segments;
  for (std::size_t m = 0; m < problem.micro_batches.size(); ++m) {
    for (const double time : problem.micro_batches[m].parts) segments.push_back({m, false, time});
    segments.push_back({m, true, problem.micro_batches[m].backbone});
  }
  const std::size_t ranks = at(problem.ranks);
  std::map<std::tuple<std::size_t, std::size_t, bool>, std::pair<double, double>> runs;  // by rank, segment, direction
  double makespan = 0;
  ASSERT_EQ(table.ranks.size(), ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double free = 0;
    EXPECT_EQ(table.ranks[rank].size(), 2 * segments.size());
    for (const ModuleRun& run : table.ranks[rank]) {
      EXPECT_GE(run.begin, free);
      free = run.begin + segments[at(run.segment)].time * (run.kind == Kind::B ? 2 : 1);
      EXPECT_TRUE(runs.try_emplace({rank, at(run.segment), run.kind == Kind::B}, run.begin, free).second);
    }
    makespan = std::max(makespan, free);
  }
  EXPECT_EQ(table.makespan, makespan);
  const auto end = [&](std::size_t rank, std::size_t segment, bool backward) { return runs.at({rank, segment, backward}).second; };
  for (const auto& [key, times] : runs) {
    const auto [rank, segment, backward] = key;
    double needed = 0;
    if (!backward && rank > 0) needed = end(rank - 1, segment, false);
    if (backward) needed = rank + 1 < ranks ? end(rank + 1, segment, true) : end(rank, segment, false);
    for (std::size_t other = 0; other < segments.size(); ++other) {
      if (segments[other].micro_batch != segments[segment].micro_batch || segments[other].backbone == segments[segment].backbone) continue;
      const bool is_backbone = segments[segment].backbone;
      if (is_backbone && !backward && rank == 0) needed = std::max(needed, end(ranks - 1, other, false));
      if (!is_backbone && backward && rank + 1 == ranks) needed = std::max(needed, end(0, other, true));
    }
    EXPECT_GE(times.first, needed);
  }
}

ModuleResult found(const ModuleProblem& problem) {
  const ModuleResult result = search_modules(problem);
  expect_runs(problem, result.table);
  EXPECT_LE(result.lower_bound, result.table.makespan);
  return result;
}

TEST(Modules, PublishedOptima) {
  for (const auto& [images, optimum] : {std::pair{std::vector<std::int64_t>{4, 1}, 33.}, {{4, 0, 2}, 42.}}) {
    const ModuleResult result = found(with_images(2, images, 2, 2));
    EXPECT_EQ(result.table.makespan, optimum);
    EXPECT_TRUE(result.proven);
  }
}

TEST(Modules, PublishedTimesOnFourRanks) {
  EXPECT_LE(found(with_images(4, {4, 1, 2, 1}, 2, 2)).table.makespan, 66);
  EXPECT_LE(found(with_images(4, {4, 1, 2, 1}, 8, 2)).table.makespan, 84);
  EXPECT_LE(found(with_images(4, {8, 1, 4, 2}, 2, 4)).table.makespan, 129);
  EXPECT_LE(found(with_images(4, {8, 1, 4, 2}, 8, 4)).table.makespan, 165);
}

TEST(Modules, MemoryRuleCanStall) {
  ModuleProblem problem = with_images(2, {4, 1, 2}, 2, 2);
  problem.most_live = 3;
  std::vector<ModuleItem> order;
  for (const std::int32_t m : {0, 1, 2}) {
    order.push_back({m, false});
    order.push_back({m, true});
  }
  EXPECT_EQ(interleave_modules(problem, order).makespan, kInfinity);
  problem.most_live = 1;
  EXPECT_EQ(message_of([&] { search_modules(problem); }),
            "every order tried stalls: a rank may hold 1 segments, and they wait for others\n"
            "  hint: allow more segments");
}

TEST(Modules, KeepsTheMemoryRule) {
  ModuleProblem problem = with_images(2, {2, 1, 2}, 2, 2);
  problem.most_live = 4;
  const ModuleResult result = found(problem);
  for (const std::vector<ModuleRun>& rank : result.table.ranks) {
    int live = 0;
    for (const ModuleRun& run : rank) EXPECT_LE(live += run.kind == Kind::B ? -1 : 1, 4);
  }
}

TEST(Modules, SegmentCounts) {
  EXPECT_EQ(segment_counts({7, 20, 21}), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(Modules, Parts) {
  EXPECT_EQ(even_parts(7, 3), (std::vector<std::int64_t>{3, 2, 2}));
  EXPECT_EQ(even_parts(0, 3), (std::vector<std::int64_t>{}));
  EXPECT_EQ(part_size({1, 2, 4, 8}, {50, 94, 96, 100}), 4);
}

// The least makespan of all orders in which runs may begin. `done`: steps of each segment.
double brute_force(const ModuleProblem& problem, const std::vector<std::vector<double>>& ends, const std::vector<double>& free) {
  const std::size_t ranks = at(problem.ranks), steps = 2 * ranks;
  double best = kInfinity;
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
      if (ready == kInfinity) continue;
      const std::size_t rank = step < ranks ? step : steps - 1 - step;
      const double time = (segment == backbone ? micro_batch.backbone : micro_batch.parts[segment - first]) * (step < ranks ? 1 : 2);
      auto next = ends;
      auto then = free;
      then[rank] = std::max(free[rank], ready) + time;
      next[segment].push_back(then[rank]);
      best = std::min(best, brute_force(problem, next, then));
    }
  }
  return all ? *std::max_element(free.begin(), free.end()) : best;
}

TEST(Modules, ProvenIsBestOfAll) {
  constexpr unsigned kSeed = 53;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(40); ++round) {
    ModuleProblem problem{.ranks = 2, .micro_batches = {}};
    problem.micro_batches.push_back({{test::draw(random, 1, 4) * 1.}, test::draw(random, 1, 4) * 1.});
    problem.micro_batches.push_back({{}, test::draw(random, 1, 6) * 1.});
    const ModuleResult result = found(problem);
    EXPECT_TRUE(result.proven);
    EXPECT_EQ(result.table.makespan, brute_force(problem, std::vector<std::vector<double>>(3), {0, 0}))
        << "seed " << kSeed << ", round " << round;
    EXPECT_LE(modules_bound(problem), result.table.makespan);
  }
}

// On four ranks, with backbones no shorter than parts: fastest or nearly so, and far below whole images in the order of micro-batches.
TEST(Modules, FiftyBatches) {
  constexpr unsigned kSeed = 55;
  Random random(kSeed);
  double split = 0, whole = 0;
  for (int batch = 0; batch < 50; ++batch) {
    std::vector<std::int64_t> images;
    std::vector<ModuleItem> given;
    for (std::int32_t m = 0; m < 4; ++m) {
      images.push_back(test::draw(random, 0, 8));
      if (images.back() > 0) given.push_back({m, false});
      given.push_back({m, true});
    }
    const ModuleResult result = found(with_images(4, images, 2, 4));
    EXPECT_TRUE(result.proven || result.table.makespan <= 1.05 * result.lower_bound) << "seed " << kSeed << ", batch " << batch;
    split += result.table.makespan;
    whole += interleave_modules(with_images(4, images, 8, 4), given).makespan;
  }
  EXPECT_LE(split, 0.85 * whole);
}

// Larger problems have bounds below what is found, and tables that hold.
TEST(Modules, RandomProblems) {
  constexpr unsigned kSeed = 54;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(20); ++round) {
    std::vector<std::int64_t> images;
    for (int m = test::draw(random, 1, 7); m > 0; --m) images.push_back(test::draw(random, 0, 8));
    const ModuleProblem problem = with_images(test::draw(random, 1, 4), images, test::draw(random, 1, 4), test::draw(random, 1, 6));
    const ModuleResult result = search_modules(problem, {.rollouts = 200, .nodes = 2000});
    expect_runs(problem, result.table);
    EXPECT_LE(result.lower_bound, result.table.makespan) << "seed " << kSeed << ", round " << round;
    EXPECT_LE(modules_bound(problem), result.lower_bound);
  }
}

}  // namespace
}  // namespace penstock
