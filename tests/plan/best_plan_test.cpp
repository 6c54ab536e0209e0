#include "plan/best_plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "plan/cost_model.h"
#include "plan/exact_plan.h"
#include "support/errors.h"
#include "support/random_plan.h"

namespace penstock::test {
namespace {

TEST(BestPlan, Explore) {
  double worst = 0, exact_s = 0, best_s = 0, worst_s = 0;
  int over = 0, infeasible = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    RandomProblem of{.nodes = 4 + static_cast<int>(seed % 7),
                     .devices = 2 + static_cast<int>(seed % 3),
                     .series_parallel = seed % 2 == 0,
                     .unequal = random() % 2 == 0,
                     .ways = random() % 4 == 0,
                     .batches = random() % 2 == 0,
                     .replicas = random() % 2 == 0};
    PlanProblem problem = random_problem(random, of);
    if (random() % 2 == 0) {
      for (ClusterDevice& d : problem.cluster.devices) d.memory = 1e6 * std::uniform_real_distribution<double>(20, 120)(random) * of.nodes;
    }
    Plan exact, best;
    auto t0 = std::chrono::steady_clock::now();
    std::string a = message_of([&] { exact = make_plan("exact", problem, {.seconds = 60}); });
    auto t1 = std::chrono::steady_clock::now();
    std::string b = message_of([&] { best = make_plan("best", problem, {.seconds = 60, .exact = false}); });
    auto t2 = std::chrono::steady_clock::now();
    const double es = std::chrono::duration<double>(t1 - t0).count(), bs = std::chrono::duration<double>(t2 - t1).count();
    exact_s += es, best_s += bs;
    if (es > worst_s) {
      worst_s = es;
      std::printf("seed %lu n %d d %d uneq %d ways %d batches %d repl %d: exact %.3f best %.3f\n", seed, of.nodes, of.devices, of.unequal,
                  of.ways, of.batches, of.replicas, es, bs);
    }
    if (a != "no error" || b != "no error") {
      ++infeasible;
      if ((a == "no error") != (b == "no error") || infeasible < 3) std::printf("seed %lu\n%s\n%s\n", seed, a.c_str(), b.c_str());
      continue;
    }
    const double gap = best.predicted_time / exact.predicted_time - 1;
    worst = std::max(worst, gap);
    if (gap > 0.001)
      std::printf("seed %lu n %d d %d uneq %d ways %d batches %d repl %d: gap %.4f (%s)\n", seed, of.nodes, of.devices, of.unequal, of.ways,
                  of.batches, of.replicas, gap, best.planner.c_str());
    over += gap > 0.01;
    EXPECT_TRUE(exact.optimal);
    EXPECT_GT(gap, -1e-8);
  }
  std::printf("worst %.4f over %d infeasible %d exact %.2f s best %.2f s\n", worst, over, infeasible, exact_s, best_s);
}

}  // namespace
}  // namespace penstock::test
