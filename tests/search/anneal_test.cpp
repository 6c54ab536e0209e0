// SPDX-License-Identifier: Apache-2.0
// The loop of all local searches: what stays, by both acceptances, and that a change which is not made is not counted.
#include "search/anneal.h"

#include <gtest/gtest.h>

#include "base/numbers.h"

namespace penstock {
namespace {

TEST(Anneal, LateAcceptanceForgetsAfterAsManyTries) {
  LateAcceptance late(10);
  late.tried(0, 3, true);
  EXPECT_EQ(late.most(1), 10);
  for (std::int64_t n = 1; n < 64; ++n) {
    EXPECT_EQ(late.most(n), 10);
    late.tried(n, 11, false);
  }
  EXPECT_EQ(late.most(64), 3);
}

TEST(Anneal, WhatCannotBeNeverStays) {
  EXPECT_LT(LateAcceptance(kInfinity).most(0), kInfinity);
}

// At first a change that is a few tenths worse may stay, at the end none does.
TEST(Anneal, CoolingAcceptsLessAndLess) {
  std::mt19937_64 random(1);
  Cooling cooling{1, random, [](std::int64_t n) { return static_cast<double>(n) / 1000; }};
  double first = 0, last = 0;
  for (std::int64_t n = 0; n < 100; ++n) first = std::max(first, cooling.most(n));
  for (std::int64_t n = 900; n < 1000; ++n) last = std::max(last, cooling.most(n));
  EXPECT_GT(first, 1.1);
  EXPECT_LT(last, 1.05);
  EXPECT_GE(last, 1);
}

TEST(Anneal, EndsWhenToldAndCountsNoChangeThatIsNone) {
  std::int64_t settled = 0;
  const auto settle = [&](double cost, bool stays) {
    EXPECT_EQ(stays, cost <= 2);
    ++settled;
  };
  std::int64_t made = 0;
  const auto change = [&](double most) -> std::optional<double> {
    EXPECT_EQ(most, 2);
    if (++made % 2 == 0) return {};
    return made % 4 == 1 ? 2 : 3;
  };
  anneal(100, LateAcceptance(2), [](std::int64_t n) { return n < 10; }, change, settle);
  EXPECT_EQ(made, 10);
  EXPECT_EQ(settled, 5);
}

}  // namespace
}  // namespace penstock
