// SPDX-License-Identifier: Apache-2.0
// The cheapest way to give up enough of what lives together, against all ways there are.
#include "batch/cover.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

bool keeps(const std::vector<CoverSet>& sets, const std::vector<int>& units) {
  return std::ranges::all_of(sets, [&](const CoverSet& set) {
    double left = set.over;
    for (std::size_t i = 0; i < set.entries.size(); ++i) left -= set.saved[i] * units[set.entries[i]];
    return left <= 1e-9;
  });
}

double cost_of(const std::vector<CoverEntry>& entries, const std::vector<int>& units) {
  double sum = 0;
  for (std::size_t e = 0; e < entries.size(); ++e) sum += units[e] * entries[e].cost;
  return sum;
}

double brute_cost(const std::vector<CoverSet>& sets, const std::vector<CoverEntry>& entries, std::vector<int>& units, std::size_t e) {
  if (e == entries.size()) return keeps(sets, units) ? cost_of(entries, units) : kInfinity;
  double best = kInfinity;
  for (units[e] = 0; units[e] <= entries[e].most; ++units[e]) best = std::min(best, brute_cost(sets, entries, units, e + 1));
  return best;
}

TEST(Cover, IsTheCheapestOfAll) {
  constexpr unsigned kSeed = 61;
  Random random(kSeed);
  int none = 0, free = 0;
  for (int round = 0; round < test::rounds(300); ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    std::vector<CoverEntry> entries;
    for (int n = test::draw(random, 1, 6); n > 0; --n) entries.push_back({test::draw(random, 0, 3), test::draw(random, 1, 9) / 3.});
    std::vector<CoverSet> sets;
    for (int n = test::draw(random, 1, 5); n > 0; --n) {
      CoverSet& set = sets.emplace_back(CoverSet{.entries = {}, .saved = {}, .over = test::draw(random, -4, 12) / 2.});
      for (std::size_t e = 0; e < entries.size(); ++e)
        if (test::coin(random, 0.6)) {
          set.entries.push_back(e);
          set.saved.push_back(test::draw(random, 0, 5) / 2.);
        }
    }
    std::vector<int> units(entries.size());
    const double best = brute_cost(sets, entries, units, 0);
    const Cover found = least_cover(sets, entries, 100'000);
    ASSERT_EQ(found.feasible, best < kInfinity);
    none += !found.feasible;
    if (!found.feasible) continue;
    EXPECT_TRUE(found.proven);
    EXPECT_NEAR(found.cost, best, 1e-9);
    EXPECT_NEAR(found.cost, cost_of(entries, found.units), 1e-9);
    EXPECT_TRUE(keeps(sets, found.units));
    free += best == 0;
  }
  EXPECT_GT(none, test::rounds(20));
  EXPECT_LT(none + free, test::rounds(240));
}

// Without nodes to search the first cover found is kept, and not said to be the cheapest.
TEST(Cover, EndsWithItsNodes) {
  const std::vector<CoverEntry> entries = {{3, 1}, {3, 2}};
  const Cover found = least_cover({{{0, 1}, {1, 1}, 2}}, entries, 0);
  EXPECT_TRUE(found.feasible);
  EXPECT_FALSE(found.proven);
  EXPECT_EQ(found.units, (std::vector<int>{0, 2}));
  EXPECT_EQ(least_cover({{{0, 1}, {1, 1}, 2}}, entries, 100).units, (std::vector<int>{2, 0}));
}

}  // namespace
}  // namespace penstock
