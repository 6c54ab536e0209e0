// SPDX-License-Identifier: Apache-2.0
#include "profile/unsteady.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Unsteady, TheWorstIsNamed) {
  Costs costs;
  costs.tasks.resize(2);
  costs.tasks[0].name = "F0";
  costs.tasks[0].alone = Sample{0.010, 0.001, 10};
  costs.tasks[0].beside["gloo"] = Sample{0.010, 0.003, 10};
  EXPECT_EQ(unsteady_times(costs).size(), 1u);
  costs.tasks[1].name = "B0";
  costs.tasks[1].busy = Sample{0.054, 0.0389, 10};
  EXPECT_EQ(unsteady_text(unsteady_times(costs)),
            "warning: 2 measured times spread by more than 25 %, most of them B0 (busy): 54.000 ms +- 72 %; predictions made of them are "
            "unsure\n  hint: measure again while nothing else runs on this machine, or with more --rounds\n");
}

TEST(Unsteady, SteadyTimesAreNoWarning) {
  Costs costs;
  costs.tasks.resize(1);
  costs.tasks[0].alone = Sample{0.010, 0.002, 10};
  costs.tasks[0].busy = Sample{0, 0, 10};
  EXPECT_EQ(unsteady_text(unsteady_times(costs)), "");
}

}  // namespace
}  // namespace penstock
