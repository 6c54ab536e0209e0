// SPDX-License-Identifier: Apache-2.0
// The published schedules: always valid, and as fast and as small as published.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/table_times.h"

namespace penstock {
namespace {

using test::every_link;
using test::message_of;
using test::Times;
using test::times;

// Nothing where a precondition is violated.
std::optional<Schedule> schedule_if_allowed(std::string_view name, const ScheduleOptions& options) {
  try {
    return make_schedule(name, options);
  } catch (const Error&) {
    return {};
  }
}

// The reference table: p=4, m=8 at latencies 0, 0.5 and 1 on every link.
TEST(Generators, ReferenceTable) {
  struct Row {
    std::string name;
    int chunks;
    double makespan, bubble;
    std::vector<double> peak;
    double half, one;
  };
  const std::vector<Row> rows = {
      {"gpipe", 1, 33, 27.3, {8, 8, 8, 8}, 36, 39},      {"1f1b", 1, 33, 27.3, {4, 3, 2, 1}, 41, 49},
      {"eager-1f1b", 1, 33, 27.3, {7, 5, 3, 1}, 36, 39}, {"interleaved-1f1b", 2, 28.5, 15.8, {5.5, 4.5, 3.5, 2.5}, 35.5, 46},
      {"zb-h1", 1, 27, 11.1, {4, 4, 4, 4}, 33, 41},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const ScheduleOptions options{.actors = 4, .microbatches = 8, .chunks = row.chunks};
    const Times t = times(row.name, options);
    EXPECT_DOUBLE_EQ(t.makespan, row.makespan);
    EXPECT_NEAR(100 * t.bubble, row.bubble, 0.05);
    EXPECT_EQ(t.peak, row.peak);
    EXPECT_DOUBLE_EQ(times(row.name, options, every_link(0.5)).makespan, row.half);
    EXPECT_DOUBLE_EQ(times(row.name, options, every_link(1)).makespan, row.one);
  }
  EXPECT_DOUBLE_EQ(times("gpipe", {.actors = 4, .microbatches = 8, .chunks = 2}).makespan, 28.5);  // breadth-first
  EXPECT_EQ(times("sequential", {.actors = 4, .microbatches = 8}).makespan, 4 * 8 * 3);
}

TEST(Generators, LargerPublishedBubbles) {
  EXPECT_NEAR(times("1f1b", {.actors = 8, .microbatches = 32}).bubble, 0.179, 0.0005);
  EXPECT_NEAR(times("zb-h1", {.actors = 8, .microbatches = 32}).bubble, 0.068, 0.0005);
  EXPECT_NEAR(times("interleaved-1f1b", {.actors = 8, .microbatches = 32, .chunks = 2}).bubble, 0.099, 0.0005);
  EXPECT_NEAR(times("interleaved-1f1b", {.actors = 8, .microbatches = 32, .chunks = 6}).bubble, 0.035, 0.0005);
  const Times unequal = times("zb-h1", {.actors = 8, .microbatches = 20}, {}, {.input = 1.3, .weight = 0.7});
  EXPECT_NEAR(unequal.makespan, 71.2, 0.05);
  EXPECT_NEAR(unequal.bubble, 0.157, 0.0005);
}

// Time and peak of the formulas in the generators' head comments, for any number of micro-batches from p on.
TEST(Generators, FormulasHold) {
  for (int p : {2, 3, 4, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      SCOPED_TRACE(testing::Message() << "p " << p << " m " << m);
      const ScheduleOptions options{.actors = p, .microbatches = m};
      const double ideal = 3 * m;
      for (const char* name : {"gpipe", "1f1b", "eager-1f1b"}) EXPECT_DOUBLE_EQ(times(name, options).makespan, ideal + 3 * (p - 1)) << name;
      EXPECT_DOUBLE_EQ(times("zb-h1", options).makespan, ideal + (p - 1));
      EXPECT_DOUBLE_EQ(times("sequential", options).makespan, ideal * p);
      for (int i = 0; i < p; ++i) {
        const std::size_t actor = static_cast<std::size_t>(i);
        EXPECT_EQ(times("gpipe", options).peak[actor], m);
        EXPECT_EQ(times("1f1b", options).peak[actor], p - i);
        EXPECT_EQ(times("eager-1f1b", options).peak[actor], std::min(2 * (p - i) - 1, m));
        EXPECT_EQ(times("zb-h1", options).peak[actor], p);
        EXPECT_EQ(times("sequential", options).peak[actor], 1);
      }
      for (int v : {2, 3}) {
        if (m % p != 0) continue;
        const ScheduleOptions chunked{.actors = p, .microbatches = m, .chunks = v};
        EXPECT_NEAR(times("gpipe", chunked).makespan, ideal + 3.0 * (p - 1) / v, 1e-9);
        EXPECT_NEAR(times("interleaved-1f1b", chunked).makespan, ideal + 3.0 * (p - 1) / v, 1e-9);
        const double peak = times("interleaved-1f1b", chunked).peak[0];
        EXPECT_NEAR(peak, std::min<double>(m, p + (p - 1.0) / v), 1e-9);
      }
    }
  }
}

TEST(Generators, EveryTableIsValid) {
  for (const ScheduleInfo& info : schedules()) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = 1; m <= 4 * p + 1; ++m) {
        for (int v = 1; v <= (info.chunked ? 4 : 1); ++v) {
          SCOPED_TRACE(testing::Message() << info.name << " p " << p << " m " << m << " v " << v);
          ScheduleOptions options{.actors = p, .microbatches = m, .chunks = v};
          const std::optional<Schedule> made = schedule_if_allowed(info.name, options);
          if (!made) continue;
          const Schedule& table = *made;
          const int stages = info.name == "helixpipe" ? 2 * p * v + 1 : info.name == "slimpipe-exchange" ? p * (2 * v + 1) : p * v;
          const StageShape shape = table.predecessors.empty() ? chain(stages) : shape_of(table);
          ASSERT_EQ(message_of([&] { validate(table, shape, m); }), "no error") << print(table);
          options.forward_only = true;
          const Schedule forward = make_schedule(info.name, options);
          const StageShape of_forward = forward.predecessors.empty() ? chain(stages, true) : shape_of(forward);
          ASSERT_EQ(message_of([&] { validate(forward, of_forward, m); }), "no error") << print(forward);
        }
      }
    }
  }
}

// A last group of fewer than p micro-batches costs no more than a full one.
TEST(Generators, InterleavedTakesAnyNumberOfMicrobatches) {
  for (int p : {2, 3, 4, 8}) {
    for (int v : {2, 3}) {
      for (int m = 1; m <= 4 * p; ++m) {
        const int full = (m + p - 1) / p * p;
        const Times part = times("interleaved-1f1b", {.actors = p, .microbatches = m, .chunks = v});
        const Times whole = times("interleaved-1f1b", {.actors = p, .microbatches = full, .chunks = v});
        EXPECT_LE(part.makespan, whole.makespan) << p << " " << v << " " << m;
        EXPECT_LE(part.peak, whole.peak) << p << " " << v << " " << m;
      }
    }
  }
}

TEST(Generators, TablesAreAsPublished) {
  const auto expect = [](const std::string& name, const std::string& shape, const ScheduleOptions& options) {
    if (const std::optional<Schedule> table = schedule_if_allowed(name, options)) {
      test::expect_golden("schedule/" + name + "-" + shape + ".csv", print(*table));
    }
  };
  for (const ScheduleInfo& info : schedules()) {
    expect(info.name, "4x8", {.actors = 4, .microbatches = 8});
    expect(info.name, "3x5", {.actors = 3, .microbatches = 5});
    if (info.orders_slices) expect(info.name, "4x2-4-slices", {.actors = 4, .microbatches = 2, .slices = 4});
    if (!info.chunked) continue;
    expect(info.name, "2x6x2", {.actors = 2, .microbatches = 6, .chunks = 2});
    expect(info.name, "4x7x2", {.actors = 4, .microbatches = 7, .chunks = 2});
  }
  test::expect_golden("schedule/1f1b-4x8-forward.csv",
                      print(make_schedule("1f1b", {.actors = 4, .microbatches = 8, .forward_only = true})));
}

// A million actions, made, read back and checked in well under a second.
TEST(Generators, LargeTablesAreQuick) {
  const Schedule table = make_schedule("1f1b", {.actors = 256, .microbatches = 2048});
  const Schedule read = parse_schedule(print(table), "plan.csv");
  EXPECT_EQ(read.actors, table.actors);
  EXPECT_EQ(message_of([&] { validate(read, chain(256), 2048); }), "no error");
}

TEST(Generators, MistakesAreNamed) {
  const auto names = [](const auto& condition) {
    std::vector<std::string> out;
    for (const ScheduleInfo& info : schedules()) {
      if (condition(info)) out.push_back(info.name);
    }
    return join(out, ", ");
  };
  const std::string all = names([](const ScheduleInfo&) { return true; });
  EXPECT_EQ(message_of([] { make_schedule("1f1", {}); }),
            concat("there is no schedule \"1f1\"\n  schedules: ", all, "\n  hint: did you mean \"1f1b\"?"));
  EXPECT_EQ(message_of([] { make_schedule("anything", {}); }),
            concat("there is no schedule \"anything\"\n  schedules: ", all,
                   "\n  hint: a table of your own is named by its file, ending in .csv"));
  EXPECT_EQ(message_of([] { make_schedule("1f1b", {.chunks = 2}); }),
            concat("1f1b takes one stage per actor, not 2 chunks\n  hint: schedules that take chunks: ",
                   names([](const ScheduleInfo& info) { return info.chunked; })));
  EXPECT_EQ(message_of([] { make_schedule("gpipe", {.actors = 0}); }), "gpipe: --actors must be at least 1, not 0");
  EXPECT_EQ(message_of([] { make_schedule("gpipe", {.microbatches = -1}); }), "gpipe: --microbatches must be at least 1, not -1");
  EXPECT_EQ(message_of([] { make_schedule("gpipe", {.chunks = 0}); }), "gpipe: --chunks must be at least 1, not 0");
  EXPECT_EQ(message_of([] { make_schedule("gpipe", {.actors = 1 << 20, .microbatches = 1 << 20}); }),
            "gpipe: a table of 1048576 actors x 1 chunks x 1048576 micro-batches is too large\n  the product may be up to 134217728");
}

}  // namespace
}  // namespace penstock
