// SPDX-License-Identifier: Apache-2.0
// Largest differencing: published values, and brute force.
#include "batch/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

std::vector<double> sums_of(const std::vector<double>& values, const std::vector<std::vector<std::size_t>>& bins) {
  std::vector<double> sums;
  for (const auto& bin : bins) {
    sums.push_back(0);
    for (const std::size_t i : bin) sums.back() += values[i];
  }
  return sums;
}

std::vector<double> balanced(const std::vector<double>& values, std::size_t bins) {
  return sums_of(values, balance(values, bins));
}

TEST(Balance, PublishedSums) {
  EXPECT_EQ(balanced({8, 7, 6, 5, 4}, 2), (std::vector<double>{14, 16}));
  EXPECT_EQ(balanced({30, 29, 20, 13, 11, 11, 5, 4}, 3), (std::vector<double>{40, 41, 42}));
  EXPECT_EQ(balanced({40, 40, 22, 21, 19, 9, 7, 6, 3}, 4), (std::vector<double>{40, 40, 43, 44}));
}

TEST(Balance, FewerValuesThanBins) {
  EXPECT_EQ(balanced({3, 5}, 4), (std::vector<double>{0, 0, 3, 5}));
  EXPECT_EQ(balanced({}, 2), (std::vector<double>{0, 0}));
}

double least_largest(const std::vector<double>& values, std::size_t i, std::vector<double>& sums) {
  if (i == values.size()) return *std::max_element(sums.begin(), sums.end());
  double best = kInfinity;
  for (double& sum : sums) {
    sum += values[i];
    best = std::min(best, least_largest(values, i + 1, sums));
    sum -= values[i];
  }
  return best;
}

// Every value is in one bin, and the largest sum is at most 4/3 of the best (Michiels, Korst, Aarts 2003 give the ratio).
TEST(Balance, NearTheBest) {
  constexpr unsigned kSeed = 43;
  test::Random random(kSeed);
  int best_ones = 0;
  for (int round = 0; round < test::rounds(300); ++round) {
    std::vector<double> values;
    for (int n = test::draw(random, 1, 8); n > 0; --n) values.push_back(test::draw(random, 1, 50));
    const auto bins = balance(values, at(test::draw(random, 2, 4)));
    const std::vector<double> sums = sums_of(values, bins);
    EXPECT_TRUE(std::is_sorted(sums.begin(), sums.end()));
    std::vector<std::size_t> all;
    for (const auto& bin : bins) all.insert(all.end(), bin.begin(), bin.end());
    std::sort(all.begin(), all.end());
    std::vector<std::size_t> expected(values.size());
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    ASSERT_EQ(all, expected) << "seed " << kSeed << ", round " << round;
    std::vector<double> empty(bins.size(), 0);
    const double best = least_largest(values, 0, empty);
    EXPECT_LE(sums.back(), best * 4 / 3) << "seed " << kSeed << ", round " << round;
    best_ones += sums.back() == best ? 1 : 0;
  }
  EXPECT_GT(best_ones, test::rounds(200));
}

}  // namespace
}  // namespace penstock
