// SPDX-License-Identifier: Apache-2.0
// The lemmas beside what they say, simulated.
#include <gtest/gtest.h>

#include <limits>

#include "cost/sizing.h"
#include "support/errors.h"

namespace penstock {
namespace {

TEST(Sizing, EfficiencyIsThatOfGpusWhichShareTheirOverhead) {
  EXPECT_NEAR(gpu_efficiency(0.1, 4), 0.7857, 5e-5);
  EXPECT_NEAR(gpu_efficiency(0.05, 8), 0.75, 1e-12);
  EXPECT_NEAR(gpu_efficiency(0.02, 16), 0.7727, 5e-5);
  for (const double overhead : {0.0, 0.02, 0.3, 2.0})
    for (const int gpus : {1, 2, 7, 32}) {
      const double efficiency = gpu_efficiency(overhead, gpus);
      EXPECT_NEAR(simulated_efficiency(overhead, gpus), efficiency, 0.02 * efficiency) << overhead << ", " << gpus;
    }
}

TEST(Sizing, MostGpusStillReachTheEfficiency) {
  EXPECT_EQ(most_gpus(0.1, 0.8), 3);
  EXPECT_EQ(most_gpus(0.05, 0.8), 6);
  EXPECT_EQ(most_gpus(0, 0.9), std::numeric_limits<int>::max());
  for (const double overhead : {0.01, 0.1, 0.5})
    for (const double efficiency : {0.3, 0.8, 1.0}) {
      const int most = most_gpus(overhead, efficiency);
      EXPECT_GE(gpu_efficiency(overhead, most), efficiency - 1e-12);
      EXPECT_LT(gpu_efficiency(overhead, most + 1), efficiency);
    }
}

TEST(Sizing, ServersHideTheTrafficAndOneFewerDoesNot) {
  struct Case {
    ParameterTraffic traffic;
    int servers;
  };
  for (const auto& [traffic, servers] : std::initializer_list<Case>{
           {{0.1, 8, 1.25, 0.5}, 3}, {{0.5, 4, 1.25, 1}, 4}, {{1, 16, 10, 0.8}, 4}, {{0.1, 8, 1.25, 0.64}, 2}, {{0.25, 2, 1, 1}, 1}}) {
    ASSERT_EQ(parameter_servers(traffic), servers);
    EXPECT_LE(exposed_traffic(traffic, servers), 1e-9 * traffic.compute);
    if (servers == 1) continue;
    const double busy = 2 * traffic.parameters * traffic.workers / (traffic.bandwidth * (servers - 1));
    EXPECT_NEAR(exposed_traffic(traffic, servers - 1), busy - traffic.compute, 0.02 * traffic.compute);
  }
}

// Two devices compute 1 and 3 of 6, so each computes 2 and waits for the rest: 6 = (1 + 2 R) 2.
TEST(Sizing, FiguresAreThoseOfATimeline) {
  Timeline timeline{.devices = {"device 0", "device 1"}, .makespan = 6};
  timeline.activities = {{.begin = 0, .end = 1, .device = 0},
                         {.begin = 2, .end = 5, .device = 1},
                         {.begin = 1, .end = 2, .device = 0, .peer = 1, .lane = Lane::transfer}};
  for (const int steps : {1, 4}) {
    const StepFigures found = figures_of(timeline, steps);
    EXPECT_EQ(found.compute, 2.0 / steps);
    EXPECT_EQ(found.overhead, 1);
  }
  timeline.activities.clear();
  EXPECT_EQ(test::message_of([&] { figures_of(timeline, 1); }),
            "the computing time of the timeline is 0.0\n  hint: give one of a step that was run");
}

TEST(Sizing, Refused) {
  using test::message_of;
  EXPECT_EQ(message_of([] { gpu_efficiency(-0.1, 4); }), "the overhead is -0.1\n  hint: give a share of a GPU's computing time, 0 or more");
  EXPECT_EQ(message_of([] { most_gpus(0.1, 1.5); }), "the efficiency is 1.5\n  hint: give a share above 0, at most 1");
  EXPECT_EQ(message_of([] { parameter_servers({1, 4, 0, 1}); }), "a server's bandwidth is 0.0\n  hint: give bytes per second, above 0");
  EXPECT_EQ(message_of([] { parameter_servers({1e300, 4, 1, 1}); }).substr(0, 28), "the number of servers is 8e+");
  EXPECT_EQ(message_of([] { exposed_traffic({1, 1000, 1, 1}, 1000); }).substr(0, 22), "the number of links is");
  EXPECT_EQ(message_of([] { simulated_efficiency(0.1, 1'000'000); }).substr(0, 21), "the number of GPUs is");
  EXPECT_EQ(message_of([] { simulated_efficiency(0.1, 0); }), "the number of GPUs is 0.0\n  hint: there is at least one");
  EXPECT_EQ(message_of([] { exposed_traffic({1, 4, 1, 1}, 0); }), "the number of servers is 0.0\n  hint: there is at least one");
}

}  // namespace
}  // namespace penstock
