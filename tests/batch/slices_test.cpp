// SPDX-License-Identifier: Apache-2.0
// TeraPipe: sequences in slices, and batches in groups; published values, brute force, and long sequences by another way.
#include "batch/slice_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::draw;
using test::Random;
using Slices = std::vector<int>;

// t = fixed + .1 l + .02 l (c + l / 2).
SliceFormula published(double fixed) {
  return {.fixed = fixed, .per_token = 0.1, .per_pair = 0.02};
}

void expect_published(int length, int actors, double fixed, double time, double uniform, const Slices& slices = {}) {
  const SliceProblem problem{.actors = actors, .sequences = 1, .length = length};
  const SlicePlan plan = slice_sequences(problem, published(fixed));
  EXPECT_NEAR(plan.time, time, 1e-9);
  EXPECT_NEAR(equal_slices(problem, published(fixed)).time, uniform, 1e-9);
  ASSERT_EQ(plan.groups.size(), 1U);
  if (slices.empty()) return;
  EXPECT_EQ(plan.groups[0].slices, slices);
}

TEST(Slices, PublishedPlans) {
  expect_published(16, 4, 0.3, 9.26, 9.86, {5, 3, 2, 2, 2, 2});
  expect_published(16, 8, 0.3, 12.94, 13.93);
  expect_published(12, 2, 0.3, 4.8, 5.04, {6, 3, 3});
  expect_published(16, 4, 1, 14.67, 15.72, {6, 4, 3, 3});
  expect_published(24, 4, 0.3, 14.97, 16.02);
}

TEST(Slices, PublishedBatchOfTwo) {
  const SlicePlan plan = slice_sequences({.actors = 4, .sequences = 2, .length = 8}, published(0.3));
  EXPECT_NEAR(plan.time, 7.23, 1e-9);
  EXPECT_NEAR(plan.sum, 4.08, 1e-9);
  EXPECT_NEAR(plan.longest, 1.05, 1e-9);
  ASSERT_EQ(plan.groups.size(), 2U);
  for (const SliceGroup& group : plan.groups) {
    EXPECT_EQ(group.sequences, 1);
    EXPECT_EQ(group.slices, (Slices{5, 3}));
  }
}

// A whole sequence keeps one actor busy, and nothing is gained by slices that each cost something.
TEST(Slices, OneActorTakesTheSequenceWhole) {
  const SlicePlan plan = slice_sequences({.actors = 1, .sequences = 3, .length = 7}, published(0.3));
  ASSERT_EQ(plan.groups.size(), 1U);
  EXPECT_EQ(plan.groups[0].sequences, 3);
  EXPECT_EQ(plan.groups[0].slices, (Slices{7}));
}

TEST(Slices, FreeSlicesAreAsShortAsTheyCanBe) {
  const SlicePlan plan = slice_sequences({.actors = 4, .sequences = 1, .length = 6}, published(0));
  EXPECT_EQ(plan.groups.at(0).slices, Slices(6, 1));
  EXPECT_EQ(slice_sequences({.actors = 4, .sequences = 1, .length = 6}, [](int, int, int) { return 0.0; }).time, 0);
}

TEST(Slices, NoPlanWithoutTimes) {
  const SliceCost odd = [](int, int length, int) { return length == 2 ? 1.0 : kInfinity; };
  EXPECT_TRUE(slice_sequences({.actors = 2, .sequences = 1, .length = 7}, odd).groups.empty());
  EXPECT_EQ(slice_sequences({.actors = 2, .sequences = 1, .length = 7}, odd).time, kInfinity);
  EXPECT_EQ(slice_sequences({.actors = 2, .sequences = 1, .length = 8}, odd).groups.at(0).slices, Slices(4, 2));
}

// The longest slice of the best plan takes nearly all of the time that the whole sequence takes in one.
TEST(Slices, OneSliceMayTakeNearlyAll) {
  const SliceCost cost = [](int, int length, int context) {
    if (length == 3) return 1.0;
    if (length + context == 3 && length == 2) return 0.95;
    return length == 1 && context == 0 ? 0.01 : kInfinity;
  };
  for (const int actors : {1, 2, 8})
    EXPECT_EQ(slice_sequences({.actors = actors, .sequences = 1, .length = 3}, cost).groups.at(0).slices, (Slices{1, 2}));
}

// Calls `visit` with the sum and the longest of every way to slice what is behind `context`.
template <class Visit>
void each_slicing(int sequences, int length, const SliceCost& cost, int context, double sum, double longest, Visit& visit) {
  if (context == length) return visit(sum, longest);
  for (int slice = 1; slice <= length - context; ++slice) {
    const double time = cost(sequences, slice, context);
    each_slicing(sequences, length, cost, context + slice, sum + time, std::max(longest, time), visit);
  }
}

double brute_force(const SliceProblem& problem, const SliceCost& cost, int left, double sum, double longest) {
  if (left == 0) return sum + (problem.actors - 1) * longest;
  double best = kInfinity;
  for (int size = 1; size <= left; ++size) {
    auto visit = [&](double with, double most) { best = std::min(best, brute_force(problem, cost, left - size, with, most)); };
    each_slicing(size, problem.length, cost, 0, sum, longest, visit);
  }
  return best;
}

// The plan's own figures, added up anew.
void expect_consistent(const SliceProblem& problem, const SliceCost& cost, const SlicePlan& plan) {
  int sequences = 0;
  double sum = 0, longest = 0;
  for (const SliceGroup& group : plan.groups) {
    sequences += group.sequences;
    int context = 0;
    for (const int slice : group.slices) {
      const double time = cost(group.sequences, slice, context);
      sum += time;
      longest = std::max(longest, time);
      context += slice;
    }
    EXPECT_EQ(context, problem.length);
  }
  EXPECT_EQ(sequences, problem.sequences);
  EXPECT_NEAR(plan.sum, sum, 1e-9);
  EXPECT_EQ(plan.longest, longest);
  EXPECT_NEAR(plan.time, sum + (problem.actors - 1) * longest, 1e-9);
}

// Convex ones by a formula; others drawn for each slice, in quarters so that many plans tie, with some slices that cannot be.
SliceCost random_cost(Random& random) {
  const SliceFormula formula{
      .fixed = draw(random, 0, 8) / 4.0, .per_token = draw(random, 0, 4) / 4.0, .per_pair = draw(random, 0, 4) / 8.0};
  if (test::coin(random, 0.3)) return formula;
  const int most = draw(random, 1, 40);
  const double share = test::coin(random, 0.3) ? 0.2 : 0, grows = draw(random, 0, 2) / 2.0;
  auto drawn = std::make_shared<std::map<std::tuple<int, int, int>, double>>();
  return [=, own = Random(random())](int sequences, int length, int context) mutable {
    const auto [entry, is_new] = drawn->try_emplace({sequences, length, context});
    if (is_new) entry->second = test::coin(own, share) ? kInfinity : grows * formula(sequences, length, context) + draw(own, 0, most) / 4.0;
    return entry->second;
  };
}

void expect_best(unsigned seed, int rounds, int most_sequences, int least_length, int most_length) {
  Random random(seed);
  for (int round = 0; round < rounds; ++round) {
    const SliceProblem problem{
        .actors = draw(random, 1, 8), .sequences = draw(random, 1, most_sequences), .length = draw(random, least_length, most_length)};
    const SliceCost cost = random_cost(random);
    const SlicePlan plan = slice_sequences(problem, cost);
    const double expected = brute_force(problem, cost, problem.sequences, 0, 0);
    if (expected == kInfinity) {
      EXPECT_TRUE(plan.groups.empty()) << "seed " << seed << ", round " << round;
      continue;
    }
    EXPECT_NEAR(plan.time, expected, 1e-9) << "seed " << seed << ", round " << round;
    EXPECT_LE(plan.time, equal_slices(problem, cost).time);
    expect_consistent(problem, cost, plan);
  }
}

TEST(Slices, BruteForceOfSequences) {
  expect_best(53, 200, 1, 1, 12);
  expect_best(54, 20, 1, 16, 16);
}

TEST(Slices, BruteForceOfBatches) {
  expect_best(55, 200, 4, 1, 4);
}

// By the formula, the sum depends on the number of slices alone, so the plan of so many slices has the least longest one: as each slice
// takes all that a limit lets it take, the least limit with so few slices is found by halving.
double best_by_counting(const SliceProblem& problem, const SliceFormula& cost, int most_slices) {
  const auto slices_below = [&](double limit) {
    int count = 0;
    for (int context = 0; context < problem.length; ++count) {
      int slice = 1;
      while (context + slice < problem.length && cost(1, slice + 1, context) <= limit) ++slice;
      if (cost(1, slice, context) > limit) return problem.length + 1;
      context += slice;
    }
    return count;
  };
  double best = kInfinity;
  for (int count = 1; count <= most_slices; ++count) {
    double low = 0, high = cost(1, problem.length, 0);
    for (int halved = 0; halved < 50; ++halved) (slices_below((low + high) / 2) <= count ? high : low) = (low + high) / 2;
    best = std::min(best, cost(1, problem.length, 0) + (count - 1) * cost.fixed + (problem.actors - 1) * high);
  }
  return best;
}

// 1,000 units have half a million slices of different times: so many thresholds might be tried, each in half a million steps.
TEST(Slices, LongSequencesTakeFewThresholds) {
  constexpr int kLength = 1000;
  for (const double fixed : {0.5, 5.0, 50.0}) {
    const SliceFormula formula{.fixed = fixed, .per_token = 0.01, .per_pair = 0.0001};
    const SliceProblem problem{.actors = 8, .sequences = 1, .length = kLength};
    std::int64_t calls = 0;
    const SlicePlan plan = slice_sequences(problem, [&](int sequences, int length, int context) {
      ++calls;
      return formula(sequences, length, context);
    });
    EXPECT_NEAR(plan.time, best_by_counting(problem, formula, 80), 1e-6);
    EXPECT_LT(plan.groups.at(0).slices.size(), 80U);
    EXPECT_LT(calls, 3 * kLength * kLength) << "fixed " << fixed;
  }
}

}  // namespace
}  // namespace penstock
