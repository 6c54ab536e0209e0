// SPDX-License-Identifier: Apache-2.0
// Cutting a batch: DynaPipe's published values and brute force.
#include "batch/cut_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "batch/tour_order.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;
using Begins = std::vector<std::size_t>;

std::vector<SampleLengths> of_lengths(const std::vector<std::int64_t>& lengths) {
  std::vector<SampleLengths> samples;
  for (const std::int64_t length : lengths) samples.push_back({length, 0});
  return samples;
}

// t = fixed + n (s/4 + s^2/1024), bytes n s.
CostFormula quarter(double fixed) {
  return {.fixed = fixed, .linear = 4, .quadratic = 1024};
}

std::optional<BatchCut> cut(const std::vector<std::int64_t>& lengths, double fixed, const BatchCutOptions& options) {
  const std::vector<SampleLengths> samples = of_lengths(lengths);
  return cut_batch(padded(samples, false, 8), longest_first(samples), formula_costs(quarter(fixed)), options);
}

void expect_cut(const std::optional<BatchCut>& cut, double objective, double longest, double sum, const Begins& begins) {
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->objective, objective);
  EXPECT_EQ(cut->longest, longest);
  EXPECT_EQ(cut->sum, sum);
  EXPECT_EQ(cut->begins, begins);
}

const std::vector<std::int64_t> kTen = {100, 96, 64, 60, 33, 32, 17, 16, 8, 8};
const std::vector<SampleLengths> kPairs = {{700, 60}, {40, 35}, {230, 6}, {75, 3}, {60, 2}, {45, 40}, {690, 75}, {220, 8}};

TEST(Cut, TenSamplesOnFourStages) {
  expect_cut(cut(kTen, 10, {.stages = 4}), 5707. / 16, 745. / 16, 217, {0, 1, 2, 3, 4, 7});
  expect_cut(cut(kTen, 10, {.stages = 4, .replicas = 2}), 3971. / 16, 745. / 16, 217, {0, 1, 2, 3, 4, 7});
}

TEST(Cut, TenSamplesOnOneStage) {
  expect_cut(cut(kTen, 10, {.stages = 1}), 3209. / 16, 665. / 8, 3209. / 16, {0, 2, 4, 7});
}

TEST(Cut, CandidatesApart) {
  expect_cut(cut(kTen, 10, {.stages = 4, .interval = 5}), 357, 50, 207, {0, 1, 2, 4, 7});
}

TEST(Cut, NoneUnderTheLimit) {
  EXPECT_FALSE(cut(kTen, 10, {.stages = 4, .stored_limit = 64}));
}

TEST(Cut, TwelveSamplesUnderALimit) {
  const auto found = cut({512, 500, 260, 250, 130, 120, 60, 50, 40, 30, 20, 10}, 20, {.stages = 8, .stored_limit = 1024});
  expect_cut(found, 66633. / 16, 404, 21385. / 16, {0, 1, 2, 4, 6, 8});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->shapes[2], (BatchShape{2, 264, 0}));
}

TEST(Cut, PairsInPlainOrder) {
  const auto found = cut_batch(padded(kPairs, true, 8), longest_first(kPairs), formula_costs(quarter(20)), {.stages = 4});
  expect_cut(found, 60051. / 16, 680, 27411. / 16, {0, 1, 2, 4});
}

TEST(Cut, ShortestTour) {
  const TourOrder tour = tour_order(kPairs);
  EXPECT_EQ(tour.length, 790);
  EXPECT_EQ(tour.order.size(), kPairs.size());
}

// Every way to cut; the objective counts the first candidate that no time of the cut is above.
struct BruteCut {
  double objective = kInfinity, longest = kInfinity;
};

BruteCut brute_force(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order, const ShapeCosts& costs,
                     const BatchCutOptions& options) {
  const std::size_t n = order.size();
  const auto time_of = [&](std::size_t begin, std::size_t end) {
    BatchShape shape{static_cast<std::int64_t>(end - begin), 0, 0};
    for (std::size_t i = begin; i < end; ++i) shape.input = std::max(shape.input, samples[order[i]].input);
    const ShapeCost cost = *costs(shape);
    return cost.stored <= options.stored_limit ? cost.time : kInfinity;
  };
  std::vector<double> times, candidates;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + 1; j <= n && time_of(i, j) < kInfinity; ++j) times.push_back(time_of(i, j));
  std::sort(times.begin(), times.end());
  for (const double time : times)
    if (candidates.empty() || time > candidates.back() + options.interval) candidates.push_back(time);
  BruteCut best;
  for (unsigned cuts = 0; cuts < 1U << (n - 1); ++cuts) {
    double sum = 0, most = 0;
    for (std::size_t begin = 0, end = 1; end <= n; ++end) {
      if (end < n && (cuts >> (end - 1) & 1) == 0) continue;
      sum += time_of(begin, end);
      most = std::max(most, time_of(begin, end));
      begin = end;
    }
    const auto candidate = std::lower_bound(candidates.begin(), candidates.end(), most);
    if (candidate == candidates.end()) continue;
    const double objective = static_cast<double>(options.stages - 1) * *candidate / static_cast<double>(options.chunks) +
                             sum / static_cast<double>(options.replicas);
    if (objective < best.objective || (objective == best.objective && *candidate < best.longest)) best = {objective, *candidate};
  }
  return best;
}

// Times are sixteenths and divisors powers of two, so that sums are exact.
TEST(Cut, IsBestOfAllCuts) {
  constexpr unsigned kSeed = 41;
  Random random(kSeed);
  int none = 0;
  for (int round = 0; round < test::rounds(1000); ++round) {
    std::vector<std::int64_t> lengths;
    for (int n = test::draw(random, 1, 12); n > 0; --n) lengths.push_back(test::draw(random, 1, 300));
    const BatchCutOptions options{.stages = test::draw(random, 1, 8),
                                  .replicas = 1 << test::draw(random, 0, 2),
                                  .chunks = 1 << test::draw(random, 0, 1),
                                  .interval = test::draw(random, 0, 1) * 5.,
                                  .stored_limit = test::coin(random, 0.3) ? test::draw(random, 1, 6) * 100. : kInfinity};
    const std::vector<SampleLengths> samples = padded(of_lengths(lengths), false, 8);
    const std::vector<std::size_t> order = longest_first(samples);
    const ShapeCosts costs = formula_costs(quarter(test::draw(random, 0, 40)));
    const std::optional<BatchCut> found = cut_batch(samples, order, costs, options);
    const BruteCut best = brute_force(samples, order, costs, options);
    ASSERT_EQ(found ? found->objective : kInfinity, best.objective) << "seed " << kSeed << ", round " << round;
    ASSERT_EQ(found ? found->longest : kInfinity, best.longest) << "seed " << kSeed << ", round " << round;
    none += found ? 0 : 1;
  }
  EXPECT_GT(none, test::rounds(20));
  EXPECT_LT(none, test::rounds(500));
}

TEST(Cut, ModesUntilItFits) {
  const std::vector<SampleLengths> samples = of_lengths({64, 64});
  const auto mode = [](std::string name, double stored, double fixed) {
    return RecomputeMode{std::move(name), formula_costs({.fixed = fixed, .linear = 1, .stored = stored, .peak = 2})};
  };
  const std::vector<RecomputeMode> modes = {mode("none", 4, 0), mode("full", 1, 50)};
  const auto fit = [&](double available) { return fit_batch(samples, {0, 1}, modes, available, {.stages = 2}); };
  // A sample stores 256 or 64, and peaks at 128. At 512 the first mode fits twice; at 256 only full recomputation does; at 128 it does too,
  // and at 127 nothing does.
  EXPECT_EQ(fit(512).mode, 0U);
  EXPECT_EQ(fit(512).limit, 256);
  EXPECT_EQ(fit(256).mode, 1U);
  EXPECT_EQ(fit(128).limit, 64);
  EXPECT_EQ(message_of([&] { fit(127); }),
            "sample 0, padded to 64 tokens, fits into no micro-batch\n"
            "  none: stores 256.0, peaks at 128.0\n"
            "  full: stores 64.0, peaks at 128.0\n"
            "  hint: cut it shorter, use more stages, or give more memory than 127.0 to store and 127.0 at the peak");
}

// Where a micro-batch may take all of the memory, but two do not fit beside each other.
TEST(Cut, SecondLimit) {
  const std::vector<RecomputeMode> modes = {{"none", formula_costs({.linear = 1})}};
  const FittedCut fitted = fit_batch(of_lengths({64, 8}), {0, 1}, modes, 100, {.stages = 2});
  EXPECT_EQ(fitted.limit, 100);
}

TEST(Costs, GridIsLinearBetweenPoints) {
  std::vector<CostPoint> points;
  for (const std::int64_t n : {1, 2, 4})
    for (const std::int64_t s : {8, 16, 32}) points.push_back({{n, s, 0}, {.time = static_cast<double>(n * s), .stored = 1, .peak = 2}});
  const ShapeCosts costs = grid_costs(points);
  EXPECT_EQ(costs({3, 24, 0})->time, 72);  // n s is linear along each axis
  EXPECT_EQ(costs({4, 32, 0})->time, 128);
  EXPECT_EQ(costs({1, 12, 0})->peak, 2);
  EXPECT_FALSE(costs({5, 8, 0}));
  EXPECT_FALSE(costs({1, 40, 0}));
  EXPECT_FALSE(costs({1, 4, 0}));
  EXPECT_FALSE(costs({1, 8, 8}));
}

TEST(Costs, PairsByGrid) {
  std::vector<CostPoint> points;
  for (const std::int64_t e : {8, 16})
    for (const std::int64_t d : {8, 16}) points.push_back({{1, e, d}, {.time = static_cast<double>(e * d)}});
  EXPECT_EQ(grid_costs(points)({1, 12, 10})->time, 120);
}

TEST(Costs, BadCosts) {
  const auto formula = [](const CostFormula& f) { return message_of([&] { formula_costs(f); }); };
  EXPECT_EQ(formula({.fixed = -1}), "the fixed time of a micro-batch is -1.0; it must be a number and not negative");
  EXPECT_EQ(formula({.stored = std::numeric_limits<double>::quiet_NaN()}),
            "the memory that a token stores is nan; it must be a number and not negative");
  EXPECT_EQ(formula({.linear = 0}), "the time of a token is divided by 0.0; it must be positive");
  const auto grid = [](const std::vector<CostPoint>& points) { return message_of([&] { grid_costs(points); }); };
  EXPECT_EQ(grid({}), "there are no measured points");
  EXPECT_EQ(grid({{{3, 8, 0}, {}}}), "a measured point has 3 samples\n  hint: measure at powers of two");
  EXPECT_EQ(grid({{{1, 8, 0}, {.time = -2}}}), "the time of 1 samples of 8 tokens is -2.0; it must be a number and not negative");
  EXPECT_EQ(grid({{{1, 8, 0}, {}}, {{1, 8, 0}, {}}}), "the costs of 1 samples of 8 tokens are there twice");
  EXPECT_EQ(grid({{{1, 8, 0}, {}}, {{2, 16, 0}, {}}}),
            "the costs of 1 samples of 16 tokens are missing\n  hint: give a point for each crossing of the axes");
}

TEST(Samples, BadSamples) {
  const auto check = [](const std::vector<SampleLengths>& samples, bool decoder) {
    return message_of([&] { check_samples(samples, decoder, 100); });
  };
  EXPECT_EQ(check({}, false), "the batch has no samples");
  EXPECT_EQ(check({{5, 0}, {0, 0}}, false), "sample 1 has an input of length 0\n  hint: leave the sample out");
  EXPECT_EQ(check({{5, -2}}, true), "sample 0 has a target of length -2\n  hint: leave the sample out");
  EXPECT_EQ(check({{101, 0}}, false), "sample 0 has length 101, and the context is 100\n  hint: cut it, or leave it out");
  EXPECT_EQ(check({{5, 0}, {6, 0}}, true), "the target of every sample is empty: the batch has nothing to learn");
  EXPECT_EQ(check({{5, 0}, {6, 1}}, true), "no error");
}

// Complete linkage: of 0, 10 and 20 only two may be together.
TEST(Order, ClustersKeepTheirOrder) {
  const TourOrder tour = tour_order({{100, 4}, {500, 4}, {102, 5}, {110, 4}, {498, 6}, {120, 4}});
  std::vector<std::vector<std::size_t>> runs = {{0, 2, 3}, {5}, {1, 4}};
  for (const auto& run : runs)
    EXPECT_NE(std::search(tour.order.begin(), tour.order.end(), run.begin(), run.end()), tour.order.end()) << run[0];
  EXPECT_EQ(tour_order({{5, 5}}).order, Begins{0});
}

// The shortest of all open tours, for up to seven points that are clusters of their own.
TEST(Order, TourIsNearlyShortest) {
  constexpr unsigned kSeed = 42;
  Random random(kSeed);
  double found = 0, shortest = 0;
  for (int round = 0; round < test::rounds(200); ++round) {
    std::vector<SampleLengths> samples;
    for (int n = test::draw(random, 2, 7); n > 0; --n) samples.push_back({test::draw(random, 1, 900), test::draw(random, 1, 900)});
    std::vector<std::size_t> order(samples.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    double best = kInfinity;
    do {
      double length = 0;
      for (std::size_t i = 1; i < order.size(); ++i)
        length += static_cast<double>(std::abs(samples[order[i]].input - samples[order[i - 1]].input) +
                                      std::abs(samples[order[i]].target - samples[order[i - 1]].target));
      best = std::min(best, length);
    } while (std::next_permutation(order.begin(), order.end()));
    const double length = tour_order(samples, 0).length;
    EXPECT_GE(length, best - 1e-9) << "seed " << kSeed << ", round " << round;
    found += length;
    shortest += best;
  }
  EXPECT_LE(found, 1.005 * shortest);
}

}  // namespace
}  // namespace penstock
