// SPDX-License-Identifier: Apache-2.0
// The cyclic order and the order of injection: DynaPipe's published values and properties.
#include "batch/cyclic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "batch/inject.h"
#include "batch/micro_batch_times.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;
using Numbers = std::vector<double>;

// B takes twice F.
MicroBatches of(const Numbers& forward, const Numbers& sizes) {
  MicroBatches work{forward, forward, sizes};
  for (double& time : work.backward) time *= 2;
  return work;
}

TableTime cyclic(int actors, const Numbers& forward, const Numbers& sizes, double cap = kInfinity, double latency = 0) {
  return time_micro_batches(cyclic_schedule(actors, sizes, cap), of(forward, sizes), latency);
}

const Numbers kOnes(8, 1), kEight = {5, 1, 1, 4, 2, 2, 1, 3};

TEST(Cyclic, EqualMicroBatches) {
  const auto expect = [](double cap, double makespan, const Numbers& live) {
    const TableTime time = cyclic(4, kOnes, kOnes, cap);
    EXPECT_EQ(time.makespan, makespan) << cap;
    EXPECT_EQ(time.peak_live, live) << cap;
  };
  expect(kInfinity, 33, {7, 5, 3, 1});
  expect(4, 36, {4, 4, 3, 1});
  expect(3, 45, {3, 3, 3, 1});
  expect(2, 51, {2, 2, 2, 1});
  expect(1, 96, {1, 1, 1, 1});
  EXPECT_EQ(cyclic(4, kOnes, kOnes, kInfinity, 1).makespan, 39);
}

TEST(Cyclic, UnequalMicroBatches) {
  EXPECT_EQ(cyclic(4, kEight, kEight).makespan, 99);
  EXPECT_EQ(cyclic(4, kEight, kEight, 6).makespan, 166);
  EXPECT_EQ(cyclic(4, kEight, kEight, 6).peak_live, (Numbers{6, 6, 6, 5}));
  EXPECT_EQ(cyclic(4, kEight, kEight, 5).makespan, 186);
  const Schedule fixed = make_schedule("1f1b", {.actors = 4, .microbatches = 8});
  EXPECT_EQ(time_micro_batches(fixed, of(kEight, kEight)).makespan, 130);
}

TEST(Cyclic, Stalls) {
  EXPECT_EQ(message_of([] { cyclic(4, {3, 1, 2, 1, 3, 2}, {1, 1, 1, 1, 1, 7}, 6); }),
            "the cyclic order stalls: micro-batch 5 of size 7.0 is above the cap of 6.0\n"
            "  hint: raise the cap, or cut the batch into smaller micro-batches");
  EXPECT_EQ(message_of([] { cyclic_schedule(2, {3, 1}, 2); }),
            "the cyclic order stalls: micro-batch 0 of size 3.0 is above the cap of 2.0\n"
            "  hint: raise the cap, or cut the batch into smaller micro-batches");
}

// Tables are valid and keep the cap, also where sizes do not add up exactly.
TEST(Cyclic, KeepsTheCap) {
  constexpr unsigned kSeed = 44;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(10000); ++round) {
    const int actors = test::draw(random, 1, 6);
    Numbers forward, sizes;
    for (int m = test::draw(random, 1, 12); m > 0; --m) {
      forward.push_back(test::draw(random, 0, 9));
      sizes.push_back(test::draw(random, 1, 70) / 10.);
    }
    const double cap = *std::max_element(sizes.begin(), sizes.end()) + test::draw(random, 0, 100) / 10.;
    const Schedule schedule = cyclic_schedule(actors, sizes, cap);
    validate(schedule, chain(actors), static_cast<int>(sizes.size()));
    for (const double peak : time_micro_batches(schedule, of(forward, sizes)).peak_live)
      ASSERT_LE(peak, cap * (1 + 1e-12)) << "seed " << kSeed << ", round " << round;
  }
}

// With equal micro-batches the simulator of tables says the same.
TEST(MicroBatchTimes, AgreeWithTheSimulator) {
  constexpr unsigned kSeed = 45;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(100); ++round) {
    const int actors = test::draw(random, 1, 6), count = test::draw(random, 1, 12);
    const double forward = test::draw(random, 1, 9), backward = test::draw(random, 1, 9), latency = test::draw(random, 0, 8) / 4.;
    const Numbers sizes(at(count), 1);
    const Schedule schedule =
        test::coin(random, 0.5) ? cyclic_schedule(actors, sizes) : make_schedule("1f1b", {.actors = actors, .microbatches = count});
    const TableTime time = time_micro_batches(schedule, {Numbers(at(count), forward), Numbers(at(count), backward), sizes}, 0);
    const TableCosts costs = uniform_costs(actors, {.forward = forward, .backward = backward});
    const TableTime simulated = time_table(schedule, chain(actors), costs);
    EXPECT_EQ(time.makespan, simulated.makespan) << "seed " << kSeed << ", round " << round;
    EXPECT_EQ(time.peak_live, simulated.peak_live) << "seed " << kSeed << ", round " << round;
    // Where transfers of an actor take longer than its actions, they queue; otherwise latency is all that differs.
    if (latency > std::min(forward, backward)) continue;
    TableOptions late;
    late.network.link.latency = latency;
    const double delayed =
        time_micro_batches(schedule, {Numbers(at(count), forward), Numbers(at(count), backward), sizes}, latency).makespan;
    EXPECT_EQ(delayed, time_table(schedule, chain(actors), costs, late).makespan) << "seed " << kSeed << ", round " << round;
  }
}

TEST(MicroBatchTimes, BadMicroBatches) {
  const auto check = [](const MicroBatches& work) { return message_of([&] { check_micro_batches(work); }); };
  EXPECT_EQ(check({}), "there are no micro-batches");
  EXPECT_EQ(check({{1, 2}, {1, 2}, {1}}), "there are 2 forward times and 1 sizes\n  hint: give one of each for every micro-batch");
  EXPECT_EQ(check({{1, -2}, {1, 2}, {1, 1}}), "micro-batch 1: the forward times have -2.0, which must be a number and not negative");
}

Injection injected(int actors, const Numbers& forward, const Numbers& sizes, std::size_t groups, double cap = kInfinity) {
  const MicroBatches work = of(forward, sizes);
  return inject(actors, work, groups > 0 ? groups_of_like(work, groups) : groups_of_equals(work), cap);
}

Numbers in_order(const Numbers& values, const std::vector<std::size_t>& order) {
  Numbers out;
  for (const std::size_t i : order) out.push_back(values[i]);
  return out;
}

TEST(Injection, AllOrders) {
  EXPECT_EQ(injected(4, {4, 4, 2, 2, 1, 1}, Numbers(6, 1), 6).time.makespan, 68);
  EXPECT_EQ(injected(4, {5, 4, 3, 2, 1}, Numbers(5, 1), 0).time.makespan, 75);
  EXPECT_EQ(injected(3, {6, 3, 3, 1, 1, 1}, Numbers(6, 1), 6).time.makespan, 67);
}

TEST(Injection, GroupsOfEquals) {
  const Numbers forward = {4, 4, 2, 2, 1, 1};
  const Injection best = injected(4, forward, Numbers(6, 1), 0);
  EXPECT_EQ(best.time.makespan, 69);
  EXPECT_EQ(in_order(forward, best.order), (Numbers{1, 1, 2, 2, 4, 4}));
  EXPECT_FALSE(best.capped);
}

TEST(Injection, HeldUpByTheCap) {
  const Numbers forward = {4, 4, 2, 2, 1, 1};
  const Injection best = injected(4, forward, forward, 6, 7);
  EXPECT_EQ(best.time.makespan, 99);
  EXPECT_TRUE(best.capped);
  EXPECT_LE(*std::max_element(best.time.peak_live.begin(), best.time.peak_live.end()), 7);
}

// An order that keeps the cap by itself goes before faster ones that would be held up.
TEST(Injection, KeepsTheCapByItself) {
  const Numbers forward = {4, 4, 2, 2, 1, 1};
  const Injection best = injected(2, forward, forward, 0, 10);
  EXPECT_FALSE(best.capped);
  EXPECT_LE(best.time.peak_live[0], 10);
}

TEST(Injection, LikeMicroBatchesAreTogether) {
  const MicroBatches work = of({1, 9, 1.1, 30, 9.2, 0.9, 31, 8.8}, Numbers(8, 1));
  MicroBatchGroups groups = groups_of_like(work, 3);
  for (auto& group : groups) std::sort(group.begin(), group.end());
  std::sort(groups.begin(), groups.end());
  EXPECT_EQ(groups, (MicroBatchGroups{{0, 2, 5}, {1, 4, 7}, {3, 6}}));
}

TEST(Injection, TooManyGroups) {
  EXPECT_EQ(message_of([] { injected(2, {1, 2, 3, 4, 5, 6, 7, 8, 9}, Numbers(9, 1), 0); }),
            "there are 9 groups of micro-batches, and every order of them is tried: at most 8\n"
            "  hint: put like micro-batches into one group");
}

}  // namespace
}  // namespace penstock
