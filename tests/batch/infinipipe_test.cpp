// SPDX-License-Identifier: Apache-2.0
// Whole batches by InfiniPipe: what rows and slices hold, the limit, and tables that the lowering takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "batch/chunk_schedule.h"
#include "batch/infinipipe.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/sequence_batch.h"

namespace penstock {
namespace {

using test::problem_of;
using test::Random;

// For each row: its slices, and the samples that stand in it.
std::string text_of(const PlannedBatch& plan) {
  std::string out;
  for (std::size_t m = 0; m < plan.loads.size(); ++m) {
    for (const std::int64_t slice : plan.loads[m].shape.slices) out += std::to_string(slice) + " ";
    out += "of";
    for (const std::size_t sample : plan.samples[m]) out += " " + std::to_string(sample);
    out += "\n";
  }
  return out;
}

// The bounds of 256 tokens in four pieces are at 105.3, 166.8 and 215.0; tails take short samples.
TEST(InfiniPipe, CutsLongSamplesAndPacksShortOnes) {
  const PlannedBatch plan = infinipipe_batch(problem_of({20, 120, 256, 8, 30, 70, 90}, 2), {.context = 256, .slices = 4});
  EXPECT_EQ(text_of(plan), "104 64 48 96 of 2 4 0\n104 88 of 1 5\n104 of 6 3\n");
  EXPECT_EQ(plan.found_by, "infinipipe, 4 pieces");
  EXPECT_EQ(plan.schedule.slices, 4);
  // The slice behind 104 tokens of its sample computes what 168 tokens have more than 104.
  EXPECT_EQ(plan.loads[0].slices[1].input_squares, 168. * 168 - 104. * 104);
  EXPECT_EQ(plan.loads[1].slices[1].input_squares, 120. * 120 - 104. * 104 + 70. * 70);
}

// Batches meet the same slices again: bounds are of the context, or of the part of it that the longest sample fits in.
TEST(InfiniPipe, BoundsDoNotFollowEveryLongestSample) {
  const auto slices = [](std::int64_t longest) {
    return infinipipe_batch(problem_of({longest}, 2), {.context = 512, .slices = 2}).loads[0].shape.slices;
  };
  using Lengths = std::vector<std::int64_t>;
  EXPECT_EQ(slices(256), (Lengths{168, 88}));
  EXPECT_EQ(slices(250), (Lengths{168, 88}));
  EXPECT_EQ(slices(200), (Lengths{168, 32}));
  EXPECT_EQ(slices(128), (Lengths{80, 48}));
}

// A slice has a price of its own.
TEST(InfiniPipe, CutsOnlyWhereThatPays) {
  EXPECT_EQ(infinipipe_batch(problem_of({64, 64}, 2, 0), {.context = 64, .slices = 4}).schedule.slices, 4);
  EXPECT_EQ(infinipipe_batch(problem_of({64, 64}, 2, 1000), {.context = 64, .slices = 4}).schedule.slices, 1);
  EXPECT_EQ(infinipipe_batch(problem_of({64, 64}, 1, 1), {.context = 64, .slices = 4}).schedule.slices, 1) << "one actor waits for nobody";
}

// Behind the chunks of a long sequence three short ones would live on the first stage beside it.
TEST(InfiniPipe, DividesSequencesIntoGroupsWhereThatKeepsTheLimit) {
  SearchedBatchProblem problem = problem_of({256, 72, 72, 72, 72, 72, 72}, 4, 0.1);
  problem.limit = 300;
  const PlannedBatch plan = infinipipe_batch(problem, {.context = 256, .slices = 4});
  EXPECT_EQ(plan.found_by, "infinipipe, 4 pieces, 2 groups");
  EXPECT_LE(plan.peak, 300);
  PlannedBatch together = plan;
  std::vector<int> chunks;
  for (const BatchLoad& load : plan.loads) chunks.push_back(static_cast<int>(load.slices.size()));
  together.schedule = sequence_schedule(4, chunks);
  time_plan(problem, together);
  EXPECT_GT(together.peak, 300);
  // With R the faster of both ways is taken.
  problem.recompute = true;
  EXPECT_LE(infinipipe_batch(problem, {.context = 256, .slices = 4}).time, plan.time);
}

StageShape shape_of(const PlannedBatch& plan, int actors) {
  const int slices = plan.schedule.slices;
  StageShape out = sliced(chain(actors), slices);
  out.idle.assign(at(actors * slices), std::vector<bool>(plan.loads.size(), false));
  for (std::size_t m = 0; m < plan.loads.size(); ++m)
    for (int stage = 0; stage < actors * slices; ++stage)
      out.idle[at(stage)][m] = part_of(stage, slices).slice >= std::ssize(plan.loads[m].slices);
  return out;
}

TEST(InfiniPipe, KeepsEverySampleAndTheLimit) {
  constexpr unsigned kSeed = 54;
  Random random(kSeed);
  constexpr int kLayers = 3;
  int recomputed = 0, grouped = 0, none = 0, by_layers = 0;
  for (int round = 0; round < test::rounds(200); ++round) {
    const int actors = test::draw(random, 1, 4);
    std::vector<std::int64_t> lengths;
    for (int n = test::draw(random, 1, 20); n > 0; --n) lengths.push_back(test::draw(random, 1, test::coin(random, 0.2) ? 512 : 60));
    SearchedBatchProblem problem = problem_of(lengths, actors, 0.1);
    problem.costs = [costs = problem.costs](const BatchLoad& load) {
      std::vector<StageCosts> out = costs(load);
      for (std::size_t s = 0; s < out.size(); ++s) {
        const int again = load.shape.again.empty() ? 0 : load.shape.again[s];
        out[s].kept = out[s].live / 4;
        out[s].live -= again * out[s].live / (kLayers + 1);
        out[s].of(Kind::B) += again * out[s].of(Kind::F) / kLayers;
      }
      return out;
    };
    problem.recompute = test::coin(random, 0.7);
    problem.layers = test::coin(random, 0.5) ? kLayers : 0;
    if (test::coin(random, 0.8)) problem.limit = test::draw(random, 100, 1500);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    PlannedBatch plan;
    if (test::message_of([&] { plan = infinipipe_batch(problem, {.context = 512, .slices = 8}); }) != "no error") {
      ++none;
      continue;
    }
    std::vector<std::size_t> found;
    for (std::size_t m = 0; m < plan.samples.size(); ++m) {
      const BatchLoad& load = plan.loads[m];
      std::int64_t tokens = 0;
      for (const std::size_t sample : plan.samples[m]) tokens += lengths[sample];
      EXPECT_LE(tokens, load.shape.input);
      EXPECT_GT(tokens + problem.round, load.shape.input);
      EXPECT_EQ(std::accumulate(load.shape.slices.begin(), load.shape.slices.end(), std::int64_t{0}), load.shape.input);
      found.insert(found.end(), plan.samples[m].begin(), plan.samples[m].end());
    }
    std::ranges::sort(found);
    std::vector<std::size_t> all(lengths.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(found, all);
    EXPECT_NO_THROW(validate(plan.schedule, shape_of(plan, actors), static_cast<int>(plan.loads.size())));
    const TableTime time = time_batch(plan, problem.costs);
    EXPECT_EQ(time.makespan, plan.time);
    EXPECT_LE(*std::ranges::max_element(time.peak_live), problem.limit);
    for (std::size_t m = 0; m < plan.loads.size(); ++m) {  // the shape has what its slices have, stage by stage
      const BatchLoad& load = plan.loads[m];
      for (std::size_t i = 0; i < load.shape.again.size(); ++i)
        EXPECT_EQ(load.shape.again[i], load.slices[i % load.slices.size()].shape.again[i / load.slices.size()]);
      by_layers += !load.shape.again.empty();
      EXPECT_LE(std::ranges::max(load.shape.again.empty() ? std::vector<int>{0} : load.shape.again), problem.layers);
    }
    grouped += plan.found_by.find("groups") != std::string::npos;
    for (const auto& row : plan.schedule.actors)
      recomputed += std::ranges::any_of(row, [](const Action& action) { return action.kind == Kind::R; });
  }
  EXPECT_GT(recomputed, test::rounds(10));
  EXPECT_GE(by_layers, test::rounds(10));
  EXPECT_GE(grouped, test::rounds(60) / 10);  // they are few: none may be among a tenth
  EXPECT_GE(none, test::rounds(5));
  EXPECT_LT(none, 150);
}

TEST(InfiniPipe, NothingKeepsTheLimit) {
  SearchedBatchProblem problem = problem_of({64, 8}, 2);
  problem.limit = 40;
  EXPECT_EQ(test::message_of([&] { infinipipe_batch(problem, {.context = 64, .slices = 3}); }),
            "a batch of 2 sequences keeps no limit of 40.0 on a stage, cut into 3 slices or fewer\n"
            "  the plan that keeps least has 72.0 at once on a stage, of all micro-batches that it holds\n"
            "  the longest sequence has 64 tokens\n"
            "  hint: raise the limit or batch.slices, or set batch.recompute = \"inputs\"");
}

}  // namespace
}  // namespace penstock
