// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <gtest/gtest.h>

#include <vector>

namespace penstock {
namespace {

TEST(Permutation, VisitsEachIndexOnce) {
  for (std::uint64_t n : {1u, 2u, 3u, 5u, 64u, 65u, 1000u, 4097u}) {
    const Permutation permutation(n, 42);
    std::vector<bool> seen(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t image = permutation(i);
      ASSERT_LT(image, n);
      EXPECT_FALSE(seen[image]) << n;
      seen[image] = true;
    }
  }
}

TEST(Permutation, KeysGiveDifferentOrders) {
  const Permutation a(1000, 1), b(1000, 2), again(1000, 1);
  int equal = 0, fixed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a(i), again(i));
    equal += a(i) == b(i);
    fixed += a(i) == i;
  }
  // Both are expected once in a random order.
  EXPECT_LT(equal, 10);
  EXPECT_LT(fixed, 10);
}

}  // namespace
}  // namespace penstock
