// SPDX-License-Identifier: Apache-2.0
// Whole batches by FlexSP: what groups hold, who is in them, and the time that counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "batch/flexsp.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/sequence_batch.h"

namespace penstock {
namespace {

using test::problem_of;
using test::Random;

// For each group: how many devices, and the samples; where another takes longer: "beside".
std::string text_of(const PlannedBatch& plan) {
  std::string out;
  for (std::size_t m = 0; m < plan.loads.size(); ++m) {
    out += std::to_string(plan.loads[m].shape.degree) + " of " + std::to_string(plan.loads[m].shape.input) + ":";
    for (const std::size_t sample : plan.samples[m]) out += " " + std::to_string(sample);
    out += plan.loads[m].beside ? " beside\n" : "\n";
  }
  return out;
}

// dynamic.md's 20000 + 4 x 9900 in small: one long sequence has half of the devices, each short one a device.
TEST(FlexSP, ALongSequenceHasMoreDevices) {
  const FlexspOptions slow{.context = 512, .devices = 8, .sent = 100, .bandwidth = {{2, 4000}, {4, 2000}, {8, 200}}};
  const PlannedBatch plan = flexsp_batch(problem_of({96, 400, 88, 80, 96}, 1, 5), slow);
  EXPECT_EQ(text_of(plan), "4 of 400: 1\n1 of 96: 0 beside\n1 of 96: 4 beside\n1 of 88: 2 beside\n1 of 80: 3 beside\n");
  EXPECT_EQ(plan.loads[0].input, 100) << "of each device";
  EXPECT_EQ(plan.found_by, "flexsp, 1 micro-batch");
}

// Whether devices work together is a question of what that takes.
TEST(FlexSP, WhatIsSentMakesGroupsSmaller) {
  SearchedBatchProblem problem = problem_of({64, 64, 64, 32}, 1);
  const FlexspOptions options{.context = 64, .devices = 4, .sent = 1000, .messages = 10};
  EXPECT_EQ(text_of(flexsp_batch(problem, options)), "4 of 224: 0 1 2 3\n");
  const char* const alone = "1 of 64: 0\n1 of 64: 1 beside\n1 of 64: 2 beside\n1 of 32: 3 beside\n";
  problem.network.link.bandwidth = 1;
  EXPECT_EQ(text_of(flexsp_batch(problem, options)), alone);
  problem.network.link = {.latency = 0.5};
  EXPECT_EQ(text_of(flexsp_batch(problem, options)), alone);
}

TEST(FlexSP, KeepsEverySampleAndTheLimit) {
  constexpr unsigned kSeed = 71;
  Random random(kSeed);
  int none = 0, mixed = 0;
  for (int round = 0; round < test::rounds(200); ++round) {
    const int actors = test::draw(random, 1, 4), devices = 1 << test::draw(random, 1, 3);
    std::vector<std::int64_t> lengths;
    for (int n = test::draw(random, 1, 20); n > 0; --n) lengths.push_back(test::draw(random, 1, test::coin(random, 0.2) ? 512 : 60));
    SearchedBatchProblem problem = problem_of(lengths, actors, 0.1);
    if (test::coin(random, 0.7)) problem.limit = test::draw(random, 50, 800);
    std::map<int, double> slower;
    for (int degree = 2; degree <= devices; degree *= 2) slower[degree] = 4000. / (degree * degree);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    PlannedBatch plan;
    if (test::message_of([&] { plan = flexsp_batch(problem, {.context = 512, .devices = devices, .sent = 100, .bandwidth = slower}); }) !=
        "no error") {
      ++none;
      continue;
    }
    std::vector<std::size_t> found;
    int members = 0, counted = 0;
    for (std::size_t m = 0; m < plan.samples.size(); ++m) {
      const BatchLoad& load = plan.loads[m];
      const int degree = load.shape.degree;
      EXPECT_EQ(members % degree, 0) << "groups stand at multiples of their size";
      EXPECT_LE(members % devices + degree, devices);
      counted += load.beside ? 0 : 1;
      members += degree;
      mixed += degree != plan.loads[0].shape.degree;
      if (members % devices == 0) {
        EXPECT_EQ(counted, members / devices) << "one group of each micro-batch counts";
      }
      found.insert(found.end(), plan.samples[m].begin(), plan.samples[m].end());
    }
    EXPECT_EQ(members % devices, 0) << "no device is without a group";
    std::ranges::sort(found);
    std::vector<std::size_t> all(lengths.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    EXPECT_EQ(found, all);
    EXPECT_NO_THROW(validate(plan.schedule, chain(actors), static_cast<int>(plan.loads.size())));
    const TableTime time = time_batch(plan, problem.costs);
    EXPECT_EQ(time.makespan, plan.time);
    EXPECT_LE(*std::ranges::max_element(time.peak_live), problem.limit);
  }
  EXPECT_GT(mixed, test::rounds(50));
  EXPECT_GT(none, test::rounds(5));
  EXPECT_LT(none, 150);
}

TEST(FlexSP, NothingKeepsTheLimit) {
  SearchedBatchProblem problem = problem_of({64, 8}, 2);
  problem.limit = 20;
  EXPECT_EQ(test::message_of([&] { flexsp_batch(problem, {.context = 64, .devices = 4}); }),
            "the sequences do not fit into the devices' memory\n  hint: raise the limit, or give the axis of the mesh more members");
}

}  // namespace
}  // namespace penstock
