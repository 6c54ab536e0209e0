// SPDX-License-Identifier: Apache-2.0
// DiffusionPipe's partition beside all splits.
#include "batch/stage_split.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/text.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TEST(StageSplits, AsPublished) {
  const std::vector<double> layers = {3, 1, 4, 1, 5, 9, 2, 6};
  const StageSplit split = split_stages({.layers = layers, .links = std::vector<double>(7, 1), .stages = 4, .microbatches = 4});
  EXPECT_EQ(split.time, 90);
  EXPECT_EQ(split.slowest, 9);
  EXPECT_EQ(split.begins.size(), 4U);
  const StageSplit slow = split_stages({.layers = layers, .links = std::vector<double>(7, 12), .stages = 4, .microbatches = 4});
  EXPECT_EQ(slow.time, 120) << "the links are the slowest";
}

// The time of a split, by its definition.
double time_of(const StageSplitProblem& problem, const std::vector<int>& begins) {
  double slowest = 0, exposed = 0, backward = 0;
  for (std::size_t s = 0; s < begins.size(); ++s) {
    const int end = s + 1 < begins.size() ? begins[s + 1] : static_cast<int>(problem.layers.size());
    double stage = 0, reduce = 0, own = 0;
    for (int l = begins[s]; l < end; ++l) {
      stage += problem.layers[l];
      if (!problem.all_reduce.empty()) reduce += problem.all_reduce[l];
      own += problem.backward.empty() ? problem.layers[l] * 2 / 3 : problem.backward[l];
    }
    slowest = std::max(slowest, stage);
    if (s + 1 < begins.size() && !problem.links.empty()) slowest = std::max(slowest, problem.links[end - 1]);
    exposed = std::max(exposed, reduce - backward);
    backward += own;
  }
  return (problem.microbatches + 2 * problem.stages - 2) * slowest + exposed;
}

double best_of_all(const StageSplitProblem& problem) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> begins = {0};
  const std::function<void()> extend = [&] {
    if (std::ssize(begins) == problem.stages) {
      best = std::min(best, time_of(problem, begins));
      return;
    }
    for (int next = begins.back() + 1; next < std::ssize(problem.layers); ++next) {
      begins.push_back(next);
      extend();
      begins.pop_back();
    }
  };
  extend();
  return best;
}

TEST(StageSplits, NoOtherSplitIsFaster) {
  constexpr std::uint64_t kSeed = 20240502;
  for (std::uint64_t i = 0; i < 300; ++i) {
    SCOPED_TRACE(concat("seed ", kSeed + i));
    std::mt19937_64 random(kSeed + i);
    const auto times = [&](std::size_t count, double most) {
      std::vector<double> out(count);
      for (double& time : out) time = std::uniform_real_distribution(0.0, most)(random);
      return out;
    };
    const std::size_t layers = 1 + random() % 9;
    StageSplitProblem problem{
        .layers = times(layers, 5), .stages = static_cast<int>(1 + random() % layers), .microbatches = static_cast<int>(1 + random() % 6)};
    if (random() % 2 == 0) problem.links = times(layers - 1, 9);
    if (random() % 4 != 0) problem.all_reduce = times(layers, random() % 2 == 0 ? 9 : 40);
    if (random() % 2 == 0) problem.backward = times(layers, 4);
    const StageSplit split = split_stages(problem);
    EXPECT_NEAR(split.time, best_of_all(problem), 1e-9);
    EXPECT_NEAR(split.time, time_of(problem, split.begins), 1e-9);
  }
}

TEST(StageSplits, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { split_stages({}); }), "there are no layers\n  hint: give a time for each");
  EXPECT_EQ(message_of([] { split_stages({.layers = {1, 2}, .stages = 3}); }),
            "3 stages of 2 layers\n  hint: a stage has a layer or more: 1 to 2 stages");
  EXPECT_EQ(message_of([] { split_stages({.layers = {1, 2}, .links = {1, 1}}); }),
            "links has 2 times, not 1\n  hint: layers, all_reduce and backward have one each, links one fewer");
  EXPECT_EQ(message_of([] { split_stages({.layers = {1, -2}}); }), "layers has a time of -2.0\n  hint: a time is finite, 0 or more");
  EXPECT_EQ(message_of([] { split_stages({.layers = {1}, .microbatches = 0}); }), "0 micro-batches\n  hint: at least one");
}

}  // namespace
}  // namespace penstock
