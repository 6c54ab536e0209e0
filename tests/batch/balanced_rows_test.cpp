// SPDX-License-Identifier: Apache-2.0
// Rows of nearly equal work, against brute force.
#include "batch/balanced_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/numbers.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;
using Numbers = std::vector<double>;

TEST(BalancedRows, AreNearTheBest) {
  constexpr unsigned kSeed = 66;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(200); ++round) {
    Numbers work;
    for (int n = test::draw(random, 3, 9); n > 0; --n) work.push_back(test::draw(random, 1, 40));
    double best = kInfinity, found = 0;
    for (int which = 0; which < static_cast<int>(std::pow(3, work.size())); ++which) {
      std::array<double, 3> sums{};
      for (int i = 0, rest = which; i < std::ssize(work); ++i, rest /= 3) sums[at(rest % 3)] += work[at(i)];
      best = std::min(best, *std::max_element(sums.begin(), sums.end()));
    }
    for (const auto& row : balanced_rows(work, 3)) {
      EXPECT_FALSE(row.empty());
      double sum = 0;
      for (const std::size_t i : row) sum += work[i];
      found = std::max(found, sum);
    }
    EXPECT_GE(found, best);
    EXPECT_LE(found, best * 7 / 6) << "seed " << kSeed << ", round " << round;
  }
}

}  // namespace
}  // namespace penstock
