// A sample of a matrix of cases.
#pragma once

#include <random>

#include "support/seed.h"

namespace penstock::test {

// Takes one case in `of`, as drawn_seed() draws them; in `make soak` all.
class Sample {
 public:
  explicit Sample(unsigned of) : of_(of) {}

  bool takes() { return is_soak() || random_() % of_ == 0; }

 private:
  unsigned of_;
  std::mt19937_64 random_{drawn_seed()};
};

}  // namespace penstock::test
