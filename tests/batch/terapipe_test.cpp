// SPDX-License-Identifier: Apache-2.0
// Whole batches by TeraPipe: the groups and slices of its dynamic programs, the limit, and tables that the lowering takes.
#include "batch/terapipe.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

// A slice of l tokens behind c takes 0.3 + 0.1 l + 0.02 l (c + l / 2) on each of the actors.
SearchedBatchProblem texts(const std::vector<std::int64_t>& lengths, int actors, double fixed = 0.3) {
  SearchedBatchProblem out{.samples = {},
                           .order = {},
                           .round = 1,
                           .actors = actors,
                           .costs = stage_costs({.fixed = fixed, .linear = 10, .quadratic = 100}, actors)};
  for (const std::int64_t length : lengths) out.samples.push_back({length, 0});
  out.order = longest_first(out.samples);
  return out;
}

// For each group: its samples, and its slices.
std::string text_of(const PlannedBatch& plan) {
  std::string out;
  for (std::size_t m = 0; m < plan.loads.size(); ++m) {
    for (const std::size_t sample : plan.samples[m]) out += std::to_string(sample) + " ";
    out += "in";
    for (const std::int64_t slice : plan.loads[m].shape.slices) out += " " + std::to_string(slice);
    out += "\n";
  }
  return out;
}

// The values are those of brute force over all cuts (the time's formula is T = sum + (actors - 1) longest).
TEST(TeraPipeBatch, SlicesAreThoseOfBruteForce) {
  EXPECT_EQ(text_of(terapipe_batch(texts({16}, 4), 16)), "0 in 5 3 2 2 2 2\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({16}, 4, 1), 16)), "0 in 6 4 3 3\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({12}, 2), 16)), "0 in 6 3 3\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({8, 8}, 4), 16)), "1 in 5 3\n0 in 5 3\n");
}

// A slice has a price of its own, which several sequences share.
TEST(TeraPipeBatch, SequencesShareSlicesWhereThatPays) {
  EXPECT_EQ(text_of(terapipe_batch(texts({8, 8, 8, 8}, 2, 0), 1)), "3 in 8\n2 in 8\n1 in 8\n0 in 8\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({8, 8, 8, 8}, 2, 1), 1)), "3 2 in 8\n1 0 in 8\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({8, 8, 8, 8}, 2, 100), 4)), "3 2 1 0 in 8\n");
  EXPECT_EQ(text_of(terapipe_batch(texts({8, 8, 8, 8}, 1, 3), 4)), "3 2 1 0 in 8\n") << "one actor waits for nobody";
}

// The second group of these ends with its own longest.
TEST(TeraPipeBatch, GroupsAreAsLongAsTheirLongest) {
  const PlannedBatch plan = terapipe_batch(texts({5, 16, 3, 16}, 4), 8);
  EXPECT_EQ(plan.samples, (std::vector<std::vector<std::size_t>>{{3}, {1}, {0}, {2}}));
  for (std::size_t m = 0; m < plan.loads.size(); ++m) {
    std::int64_t tokens = 0;
    double squares = 0;
    for (const BatchLoad& slice : plan.loads[m].slices) {
      tokens += slice.shape.input;
      squares += slice.input_squares;
    }
    EXPECT_EQ(tokens, plan.loads[m].shape.input);
    EXPECT_EQ(squares, plan.loads[m].input_squares);
  }
  EXPECT_EQ(plan.loads[2].shape.input, 5);
  EXPECT_EQ(plan.loads[3].shape.input, 3);
}

TEST(TeraPipeBatch, KeepsTheLimitInGroupsOneByOne) {
  SearchedBatchProblem problem = texts({16, 16, 16, 16}, 4);
  const PlannedBatch free = terapipe_batch(problem, 16);
  EXPECT_EQ(free.found_by, "terapipe, 4 groups");
  problem.limit = free.peak - 1;
  const PlannedBatch held = terapipe_batch(problem, 16);
  EXPECT_EQ(held.found_by, "terapipe, 4 groups, one by one");
  EXPECT_EQ(held.peak, 16);
  EXPECT_GT(held.time, free.time);
  for (const PlannedBatch* plan : {&free, &held}) {
    EXPECT_NO_THROW(validate(plan->schedule, sliced(chain(4), plan->schedule.slices), 4));
  }
  problem.limit = 15;
  EXPECT_EQ(test::message_of([&] { terapipe_batch(problem, 16); }),
            "a batch of 4 sequences keeps no limit of 15.0 on a stage in the 4 groups of TeraPipe's plan\n"
            "  one group after the other, a stage has 16.0 at once\n"
            "  hint: raise the limit, or set batch.planner = \"infinipipe\" and batch.recompute = \"inputs\"");
}

}  // namespace
}  // namespace penstock
