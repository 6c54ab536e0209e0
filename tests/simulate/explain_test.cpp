// SPDX-License-Identifier: Apache-2.0
// Critical paths, idle times and the sentences about them: on timelines drawn by hand, and what holds for every table.
#include "simulate/explain.h"

#include <gtest/gtest.h>

#include "support/timelines.h"

#include <numeric>

#include "penstock/table.h"
#include "support/golden.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

Activity compute(std::int32_t device, double begin, double end, std::int64_t cause) {
  Activity activity;
  activity.begin = begin;
  activity.end = end;
  activity.device = device;
  activity.cause = cause;
  return activity;
}

Activity transfer(std::int32_t from, std::int32_t to, double begin, double end, std::int64_t cause) {
  Activity activity = compute(from, begin, end, cause);
  activity.lane = Lane::transfer;
  activity.peer = to;
  return activity;
}

// Device 0 computes 1 to 3 and starts a transfer; device 1 computes 0 to 2, waits, and computes from 6 to 10.
Timeline two_devices() {
  Timeline timeline;
  timeline.seconds = false;
  timeline.devices = {"device 0", "device 1"};
  timeline.makespan = 12;
  timeline.activities = {compute(1, 0, 2, -1), compute(0, 1, 3, -1), compute(0, 3, 4, 1), transfer(0, 1, 4, 6, 2), compute(1, 6, 10, 3)};
  timeline.activities[2].lane = Lane::host;
  return timeline;
}

TEST(Explain, CriticalPathFollowsCauses) {
  const CriticalPath path = critical_path(two_devices());
  EXPECT_EQ(path.activities, (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(path.compute, 6);
  EXPECT_EQ(path.host, 1);
  EXPECT_EQ(path.transfer, 2);
  EXPECT_EQ(path.waiting, 3);  // before device 0 began, and after the last activity
  EXPECT_EQ(path.compute_on, (std::vector<double>{2, 4}));
}

TEST(Explain, IdleTimeByCause) {
  const std::vector<Idle> idle = idle_times(two_devices());
  EXPECT_EQ(idle[0].warm_up, 1);
  EXPECT_EQ(idle[0].drain, 9);
  EXPECT_EQ(idle[0].total(), 10);
  EXPECT_EQ(idle[1].warm_up, 0);
  EXPECT_EQ(idle[1].dependency, 1);
  EXPECT_EQ(idle[1].host, 1);
  EXPECT_EQ(idle[1].communication, 2);
  EXPECT_EQ(idle[1].drain, 2);
}

// Where the cause is not known, as in a measured step, a transfer on its way to the device tells.
TEST(Explain, UnknownCausesOfMeasuredSteps) {
  Timeline timeline = two_devices();
  for (Activity& activity : timeline.activities) activity.cause = -1;
  const std::vector<Idle> idle = idle_times(timeline);
  EXPECT_EQ(idle[1].communication, 2);
  EXPECT_EQ(idle[1].dependency, 2);
  EXPECT_EQ(idle[1].total(), 6);
  EXPECT_EQ(critical_path(timeline).waiting, 8);
}

TEST(Explain, NothingAtAll) {
  Timeline timeline;
  EXPECT_EQ(explain_text(timeline, explain(timeline)), "");
  timeline.devices = {"device 0"};
  timeline.makespan = 2;
  EXPECT_EQ(idle_times(timeline)[0].total(), 2);
  EXPECT_EQ(critical_path(timeline).waiting, 0);
  EXPECT_NE(explain_text(timeline, explain(timeline)), "");
}

// Everything adds up, on random tables: the path to the makespan, idle times to what is not computed, sums to their parts.
TEST(Explain, TimesAddUp) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    Random random(seed);
    const StageShape shape = test::random_shape(random, {.no_backward = 0.2, .no_parameters = 0.2});
    const int actors = test::draw(random, 1, 4);
    const Schedule schedule =
        test::random_schedule(random, shape, actors, test::draw(random, 1, 6), {.foreign_weight = 0.2, .replica = 0.2});
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(schedule));
    const TableCosts costs = uniform_costs(schedule.stages(), {.bytes = test::draw(random, 0, 4) * 1.0});
    TableOptions options;
    options.network.link = {.latency = test::draw(random, 0, 8) / 8.0, .bandwidth = 4, .medium = test::draw(random, -1, 0)};
    options.record = true;
    const TableTime time = time_table(schedule, shape, costs, options);
    const Timeline timeline = timeline_of(schedule, shape, costs, time);
    const Explanation e = explain(timeline, dependency_bound(schedule, shape, costs, options));
    EXPECT_EQ(e.path.compute + e.path.transfer, time.makespan);
    EXPECT_EQ(e.path.waiting, 0);
    EXPECT_EQ(e.path.host, 0);
    EXPECT_EQ(std::accumulate(e.path.compute_on.begin(), e.path.compute_on.end(), 0.0), e.path.compute);
    EXPECT_TRUE(std::is_sorted(e.path.activities.begin(), e.path.activities.end()));
    for (std::size_t a = 0; a < e.idle.size(); ++a) EXPECT_EQ(e.idle[a].total(), time.makespan - time.busy[a]);
    EXPECT_EQ(compute_times(timeline), time.busy);
    EXPECT_NEAR(e.bubble, time.bubble(), 1e-12);
    EXPECT_LE(e.busiest, time.makespan);
    EXPECT_LE(e.dependencies, time.makespan);
  }
}

TEST(Explain, Sentences) {
  const Schedule schedule = make_schedule("1f1b", {.actors = 4, .microbatches = 8});
  const StageShape shape = chain(4);
  const TableCosts costs = uniform_costs(4);
  TableOptions options = {.network = {.link = {.latency = 1}}, .record = true};
  const Timeline timeline = timeline_of(schedule, shape, costs, time_table(schedule, shape, costs, options));
  const double dependencies = dependency_bound(schedule, shape, costs, options);
  const Explanation e =
      explain(timeline, dependencies, {{"actor 0 10 % faster", [] { return 48.0; }}, {"no latency", [] { return 33.0; }}});
  EXPECT_EQ(e.gains[0].change, "no latency");
  test::expect_golden("simulate/explain-table.txt", explain_text(timeline, e));
  test::expect_golden("simulate/explain-nothing-helps.txt",
                      explain_text(timeline, explain(timeline, 0, {{"no latency", [] { return 49.0; }}})));
  Timeline measured = two_devices();
  measured.seconds = true;
  test::expect_golden("simulate/explain-measured.txt", explain_text(measured, explain(measured)));
}

// As a damaged file may have them.
TEST(Explain, CausesInCirclesEnd) {
  Timeline timeline = test::small_timeline();
  timeline.activities[0].cause = 1;
  timeline.activities[5].cause = 5;
  timeline.activities[13].cause = 5;
  EXPECT_GT(explain(timeline).makespan, 0);
}

}  // namespace
}  // namespace penstock
