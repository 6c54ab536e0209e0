// SPDX-License-Identifier: Apache-2.0
// Lookups ahead of their batch, and windows of frozen tables, beside what the paper's rules give.
#include "batch/lookups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/errors.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;

TEST(Lookups, PrefetchedBatchesTakeThePublishedTimes) {
  const auto expect = [](double retrieval, int buffers, double synchronise, double time, double period) {
    const LaneTable table =
        prefetched_batches({.lanes = {1, 1, 1, retrieval, 5}, .batches = 10, .buffers = buffers, .synchronise = synchronise});
    EXPECT_NEAR(table.time.makespan, time, 1e-9);
    EXPECT_NEAR(period_of(table), period, 1e-9);
  };
  expect(4, 2, 0, 57, 5);
  expect(6, 2, 0, 68, 6);
  expect(4, 2, .2, 58.8, 5.2);
  expect(4, 1, 0, 93, 9);
  expect(4, 1, .2, 93, 9);
}

// Each batch by recursion: a lane takes it when the lane before has given it and its own is free, and retrieval when a buffer is.
double by_recursion(const PrefetchProblem& p) {
  const std::size_t lanes = p.lanes.size();
  std::vector<double> free(lanes), ends;
  for (int b = 0; b < p.batches; ++b) {
    double at = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      at = std::max(at, free[lane]);
      if (lane + 2 == lanes && b >= p.buffers) at = std::max(at, ends[b - p.buffers]);
      if (lane + 1 == lanes && b > 0 && p.buffers > 1) at += p.synchronise;
      at = free[lane] = at + p.lanes[lane];
    }
    ends.push_back(at);
  }
  return ends.back();
}

TEST(Lookups, PrefetchedBatchesTakeWhatARecursionSays) {
  std::mt19937 random(1);
  for (int trial = 0; trial < test::rounds(200); ++trial) {
    PrefetchProblem problem;
    problem.lanes.resize(2 + random() % 5);
    for (double& time : problem.lanes) time = static_cast<double>(random() % 9);
    problem.batches = 2 + static_cast<int>(random() % 12);
    problem.buffers = 1 + static_cast<int>(random() % 4);
    problem.synchronise = static_cast<double>(random() % 3);
    EXPECT_NEAR(prefetched_batches(problem).time.makespan, by_recursion(problem), 1e-9) << "trial " << trial;
  }
}

TEST(Lookups, MicroBatchesOfAFrozenWindowHideTheirExchanges) {
  const auto time = [](double embed, double dense, double gradient, int microbatches) {
    return frozen_window({embed, dense, gradient, microbatches}).time.makespan;
  };
  EXPECT_NEAR(time(2, 8, 2, 1), 12, 1e-9);
  EXPECT_NEAR(time(2, 8, 2, 4), 9, 1e-9);
  EXPECT_NEAR(time(2, 8, 2, 8), 8.5, 1e-9);
  EXPECT_NEAR(time(6, 8, 6, 4), 12, 1e-9) << "the lane of exchanges is never idle";
}

TEST(Lookups, RefusesWhatIsNoProblem) {
  const auto prefetch = [](const PrefetchProblem& problem) { return message_of([&] { prefetched_batches(problem); }); };
  const auto window = [](const FrozenWindow& of) { return message_of([&] { frozen_window(of); }); };
  EXPECT_EQ(
      prefetch({.lanes = {1}}),
      "1 lanes are no way from retrieving to computing\n  hint: give at least two: the last computes, the one before it retrieves rows");
  EXPECT_EQ(prefetch({.lanes = {1, -2}}), "a lane takes -2.0\n  hint: give a finite time, 0 or more");
  EXPECT_EQ(prefetch({.lanes = {1, 1}, .synchronise = -1}), "synchronising takes -1.0\n  hint: give a finite time, 0 or more");
  EXPECT_EQ(prefetch({.lanes = {1, 1}, .batches = 1}), "the number of batches is 1\n  hint: from 2 to 4096: a period lies between two");
  EXPECT_EQ(prefetch({.lanes = {1, 1}, .buffers = 0}), "the number of buffers is 0\n  hint: from 1 to 4096: a batch is retrieved into one");
  EXPECT_EQ(window({-1, 8, 2, 4}), "embedding takes -1.0\n  hint: give a finite time, 0 or more");
  EXPECT_EQ(window({2, 8, 2, 0}), "the number of micro-batches is 0\n  hint: from 1 to 4096: they share a step");
}

}  // namespace
}  // namespace penstock
