// SPDX-License-Identifier: Apache-2.0
// A sample of a matrix of cases.
#pragma once

#include <random>

#include "support/rounds.h"
#include "support/seed.h"

namespace penstock::test {

// Takes one case in `of`, or that part of them that PENSTOCK_ROUNDS says, as drawn_seed() draws them; in `make soak` all.
class Sample {
 public:
  explicit Sample(unsigned of) : of_(of * 1000 / rounds(1000u)) {}

  bool takes() { return is_soak() || random_() % of_ == 0; }

 private:
  unsigned of_;
  std::mt19937_64 random_{drawn_seed()};
};

}  // namespace penstock::test
