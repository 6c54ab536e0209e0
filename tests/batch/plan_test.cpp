// SPDX-License-Identifier: Apache-2.0
// A whole batch: what its replicas run, and that it keeps the memory.
#include "batch/plan_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;

BatchProblem random_batch(Random& random) {
  BatchProblem problem;
  for (int n = test::draw(random, 1, 30); n > 0; --n)
    problem.samples.push_back({test::draw(random, 1, test::coin(random, 0.2) ? 512 : 64), 0});
  problem.samples = padded(problem.samples, false, 8);
  problem.order = longest_first(problem.samples);
  problem.cut = {.stages = test::draw(random, 1, 4), .replicas = test::draw(random, 1, 3)};
  problem.modes = {{"none", formula_costs({.fixed = 30, .linear = 4, .quadratic = 1024, .stored = 3, .peak = 3})},
                   {"full", formula_costs({.fixed = 40, .linear = 3, .quadratic = 768, .stored = 1, .peak = 3})}};
  if (test::coin(random, 0.7)) problem.available = 3. * test::draw(random, 512, 3000);
  return problem;
}

TEST(BatchPlan, KeepsTheMemoryAndEveryMicroBatch) {
  constexpr unsigned kSeed = 56;
  Random random(kSeed);
  int cyclic = 0, other_mode = 0;
  for (int round = 0; round < test::rounds(300); ++round) {
    const BatchProblem problem = random_batch(random);
    const BatchPlan plan = plan_batch(problem);
    ASSERT_EQ(plan.replicas.size(), at(problem.cut.replicas));
    std::vector<std::size_t> found;
    double slowest = 0;
    for (const ReplicaPlan& replica : plan.replicas) {
      slowest = std::max(slowest, replica.time.makespan);
      if (replica.micro_batches.empty()) continue;
      found.insert(found.end(), replica.micro_batches.begin(), replica.micro_batches.end());
      validate(replica.schedule, chain(static_cast<int>(problem.cut.stages)), static_cast<int>(replica.micro_batches.size()));
      // The memory that lives, by the mode's own costs of the micro-batches at their places.
      MicroBatches work;
      for (const std::size_t m : replica.micro_batches) {
        const ShapeCost cost = *problem.modes[replica.mode].costs(plan.fitted.cut.shapes[m]);
        work.forward.push_back(cost.time / 3);
        work.backward.push_back(cost.time * 2 / 3);
        work.size.push_back(cost.stored);
      }
      const TableTime time = time_micro_batches(replica.schedule, work);
      EXPECT_EQ(time.makespan, replica.time.makespan) << "seed " << kSeed << ", round " << round;
      for (const double peak : time.peak_live) EXPECT_LE(peak, problem.available) << "seed " << kSeed << ", round " << round;
      cyclic += replica.schedule.name == "cyclic" ? 1 : 0;
      other_mode += replica.mode != plan.fitted.mode ? 1 : 0;
    }
    EXPECT_EQ(plan.time, slowest);
    std::sort(found.begin(), found.end());
    std::vector<std::size_t> all(plan.fitted.cut.shapes.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    ASSERT_EQ(found, all) << "seed " << kSeed << ", round " << round;
  }
  EXPECT_GT(cyclic, test::rounds(20));
  EXPECT_GT(other_mode, test::rounds(10));
}

TEST(BatchPlan, FitsNowhere) {
  BatchProblem problem;
  problem.samples = {{8, 0}, {64, 0}};
  problem.order = {1, 0};
  problem.modes = {{"none", formula_costs({.linear = 1})}};
  problem.available = 32;
  EXPECT_EQ(message_of([&] { plan_batch(problem); }),
            "sample 1, padded to 64 tokens, fits into no micro-batch\n"
            "  none: stores 64.0, peaks at 64.0\n"
            "  hint: cut it shorter, use more stages, or give more memory than 32.0 to store and 32.0 at the peak");
}

}  // namespace
}  // namespace penstock
