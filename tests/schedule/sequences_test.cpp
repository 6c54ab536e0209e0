// SPDX-License-Identifier: Apache-2.0
// Schedules for long sequences: TeraPipe, SlimPipe, Seq1F1B and HelixPipe. Times, peaks and what hides latency, as published or as computed
// from what is published.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/schedule.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/table_times.h"

namespace penstock {
namespace {

using test::every_link;
using test::message_of;
using test::times;

// F takes the sum of `times`, one for each slice, in each stage, B twice as long.
TableCosts costs_of(const Schedule& schedule, const std::vector<double>& times) {
  TableCosts costs = uniform_costs(schedule.stages());
  for (std::size_t s = 0; s < costs.stages.size(); ++s)
    for (double& time : costs.stages[s].time) time *= times[s % times.size()];
  return costs;
}

double makespan(const Schedule& schedule, const std::vector<double>& times) {
  return time_table(schedule, shape_of(schedule), costs_of(schedule, times)).makespan;
}

// The times that n equal slices take of a forward of 1 if attention is half of it.
std::vector<double> half_attention(int slices) {
  const double n = slices;
  std::vector<double> out;
  for (int j = 0; j < slices; ++j) out.push_back(0.5 / n + 0.5 * (2 * j + 1) / (n * n));
  return out;
}

TEST(Sequences, SlimPipe) {
  struct Row {
    int p, m, n;
    double makespan;
    std::vector<double> peak;
  };
  for (const Row& row : {Row{4, 4, 8, 13.125, {1.75, 1.5, 1.25, 1}}, Row{2, 2, 4, 6.75, {1.5, 1}}, Row{4, 1, 8, 4.125, {1, 1, 1, 1}},
                         Row{8, 4, 8, 14.625, {2.75, 2.5, 2.25, 2, 1.75, 1.5, 1.25, 1}}}) {
    SCOPED_TRACE(concat(row.p, ", ", row.m, ", ", row.n));
    const ScheduleOptions options{.actors = row.p, .microbatches = row.m, .slices = row.n};
    EXPECT_DOUBLE_EQ(times("slimpipe", options).makespan, row.makespan);
    EXPECT_EQ(times("slimpipe", options).peak, row.peak);
    EXPECT_DOUBLE_EQ(times("seq1f1b", options).makespan, row.makespan);
  }
  const ScheduleOptions options{.actors = 4, .microbatches = 4, .slices = 8};
  EXPECT_EQ(times("seq1f1b", options).peak, (std::vector<double>{1.375, 1.25, 1.125, 1}));
  EXPECT_DOUBLE_EQ(times("slimpipe", options, every_link(0.125)).makespan, 13.875);
  EXPECT_DOUBLE_EQ(times("seq1f1b", options, every_link(0.125)).makespan, 18.375);
  EXPECT_DOUBLE_EQ(times("slimpipe", options, every_link(0.25)).makespan, 15.875);
}

// Later slices read more keys and values: where no work moves between actors they wait for each other.
TEST(Sequences, SlimPipeWithoutBalance) {
  for (const auto& [actors, expected] : {std::pair{4, 13.828125}, {2, 12.75}})
    EXPECT_DOUBLE_EQ(makespan(make_schedule("slimpipe", {.actors = actors, .microbatches = 4, .slices = 8}), half_attention(8)), expected);
}

// A forward takes 1 in each actor's layers, and `head` in the whole vocabulary; transfers take `latency` of a slice's 1/n.
TableTime with_head(const ScheduleOptions& options, double head, double latency = 0) {
  const Schedule schedule = make_schedule("slimpipe", options);
  const std::int32_t p = options.actors, n = options.slices, join = p + options.head_shards;
  TableCosts costs = uniform_costs(schedule.stages());
  for (std::int32_t s = 0; s < schedule.stages() / n; ++s) {
    const double own = s < p ? 1 : s < join ? head / options.head_shards : 0, rest = options.head_shards == 1 && s == p - 1 ? head : 0;
    for (std::int32_t slice = 0; slice < n; ++slice) {
      StageCosts& stage = costs.stages[at(s * n + slice)];
      for (double& time : stage.time) time *= (own + rest) / n;
      stage.live = s < p ? 1.0 / n : 0;
    }
  }
  return time_table(schedule, shape_of(schedule), costs, {.network = every_link(latency / n)});
}

// Times that a program of another language counts by the same rule; a latency of (F+B)/2n is nearly hidden.
TEST(Sequences, SlimPipeWithTheVocabularyInParts) {
  struct Row {
    int p, m, n;
    double head, whole, parts, late;
  };
  for (const Row& row : {Row{2, 4, 8, 0.5, 18.375, 15.4375, 16.0625}, Row{4, 4, 16, 0.5, 18.5625, 14.2890625, 15.0390625},
                         Row{4, 4, 8, 0.5, 19.125, 15, 16.96875}, Row{8, 4, 16, 0.5, 19.3125, 14.68359375, 16.33203125},
                         Row{4, 4, 8, 1.5, 31.125, 17.90625, 18.8125}}) {
    SCOPED_TRACE(concat(row.p, ", ", row.m, ", ", row.n, ", ", row.head));
    ScheduleOptions options{.actors = row.p, .microbatches = row.m, .slices = row.n};
    EXPECT_DOUBLE_EQ(with_head(options, row.head).makespan, row.whole);
    options.head_shards = row.p;
    EXPECT_DOUBLE_EQ(with_head(options, row.head).makespan, row.parts);
    EXPECT_DOUBLE_EQ(with_head(options, row.head, 1.5).makespan, row.late);
    for (int i = 0; i < row.p; ++i)
      EXPECT_DOUBLE_EQ(with_head(options, row.head).peak_live[at(i)], 1 + (2.0 * (row.p - 1 - i) + 2) / row.n);
  }
}

TEST(Sequences, SlimPipeTakesAnyNumberOfParts) {
  for (const int p : {1, 2, 3, 8}) {
    for (const int m : {1, 2, 4}) {
      for (const int n : {1, 4, 16}) {
        for (const int shards : {2, 3, p + 1}) {
          SCOPED_TRACE(concat("p ", p, ", m ", m, ", n ", n, ", shards ", shards));
          ScheduleOptions options{.actors = p, .microbatches = m, .slices = n, .head_shards = shards};
          const Schedule schedule = make_schedule("slimpipe", options);
          EXPECT_EQ(message_of([&] { validate(schedule, shape_of(schedule), m); }), "no error");
          ASSERT_EQ(schedule.stages(), (p + shards + 1) * n);
          for (int part = 0; part < shards; ++part) EXPECT_EQ(actor_of_stage(schedule)[at((p + part) * n)], part % p);
          EXPECT_EQ(actor_of_stage(schedule)[at((p + shards) * n)], p - 1);
          options.forward_only = true;
          const Schedule forward = make_schedule("slimpipe", options);
          EXPECT_EQ(message_of([&] { validate(forward, shape_of(forward), m); }), "no error");
        }
      }
    }
  }
}

// The formulas of the head comments, and that one slice is 1f1b (with more ahead: eager-1f1b).
TEST(Sequences, SlimPipeFormulas) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, 2, 3, 8}) {
      for (const int n : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE(concat("p ", p, ", m ", m, ", n ", n));
        const ScheduleOptions options{.actors = p, .microbatches = m, .slices = n};
        const test::Times slim = times("slimpipe", options), seq = times("seq1f1b", options);
        EXPECT_NEAR(slim.makespan, 3 * m + 3.0 * (p - 1) / n, 1e-9);
        EXPECT_NEAR(seq.makespan, slim.makespan, 1e-9);
        for (int i = 0; i < p; ++i) {
          EXPECT_NEAR(slim.peak[at(i)], std::min<double>(m, 1 + 2.0 * (p - 1 - i) / n), 1e-9);
          EXPECT_NEAR(seq.peak[at(i)], std::min<double>(m, 1 + 1.0 * (p - 1 - i) / n), 1e-9);
        }
        EXPECT_NEAR(times("terapipe", options).makespan, slim.makespan, 1e-9);
        EXPECT_NEAR(times("terapipe", options).peak[0], m, 1e-9);
        EXPECT_NEAR(times("terapipe", options, every_link(1)).makespan, slim.makespan + 2 * (p - 1), 1e-9);
      }
      const ScheduleOptions whole{.actors = p, .microbatches = m};
      EXPECT_EQ(make_schedule("slimpipe", whole).actors, make_schedule("eager-1f1b", whole).actors);
      EXPECT_EQ(make_schedule("seq1f1b", whole).actors, make_schedule("1f1b", whole).actors);
    }
  }
}

// The time that a slice of `length` behind `context` takes on an actor, by TeraPipe's form of it.
double slice_time(double fixed, int length, int context) {
  return fixed + 0.1 * length + 0.02 * length * (context + length / 2.0);
}

std::vector<double> slice_times(double fixed, const std::vector<int>& lengths) {
  std::vector<double> out;
  int context = 0;
  for (const int length : lengths) {
    out.push_back(slice_time(fixed, length, context));
    context += length;
  }
  return out;
}

double forward_time(int actors, double fixed, const std::vector<int>& lengths, int microbatches = 1) {
  return makespan(
      make_schedule("terapipe",
                    {.actors = actors, .microbatches = microbatches, .slices = static_cast<int>(lengths.size()), .forward_only = true}),
      slice_times(fixed, lengths));
}

// Calls visit(lengths) for every way to cut `length` into lengths up to `most` that do not grow, as later slices are dearer.
template <class Visit>
void for_each_cut(int length, int most, std::vector<int>& lengths, const Visit& visit) {
  if (length == 0) return visit(lengths);
  for (int first = 1; first <= std::min(length, most); ++first) {
    lengths.push_back(first);
    for_each_cut(length - first, first, lengths, visit);
    lengths.pop_back();
  }
}

// The paper's sum t_j + (p-1) max t_j.
double published_time(int actors, const std::vector<double>& slices) {
  return std::accumulate(slices.begin(), slices.end(), 0.0) + (actors - 1) * *std::max_element(slices.begin(), slices.end());
}

TEST(Sequences, TeraPipe) {
  struct Row {
    int length, actors;
    double fixed, best;
    std::vector<int> lengths;
    double uniform;
  };
  for (const Row& row :
       {Row{16, 4, 0.3, 9.26, {5, 3, 2, 2, 2, 2}, 9.86}, Row{16, 8, 0.3, 12.94, {}, 13.93}, Row{12, 2, 0.3, 4.8, {6, 3, 3}, 5.04},
        Row{16, 4, 1, 14.67, {6, 4, 3, 3}, 15.72}, Row{24, 4, 0.3, 14.97, {}, 16.02}}) {
    SCOPED_TRACE(concat(row.length, ", ", row.actors, ", ", row.fixed));
    std::vector<int> lengths, found;
    double best = 1e9, uniform = 1e9;
    for_each_cut(row.length, row.length, lengths, [&](const std::vector<int>& cut) {
      const double time = published_time(row.actors, slice_times(row.fixed, cut));
      if (time >= best) return;
      best = time;
      found = cut;
    });
    for (int n = 1; n <= row.length; ++n)
      if (row.length % n == 0) uniform = std::min(uniform, forward_time(row.actors, row.fixed, std::vector<int>(at(n), row.length / n)));
    EXPECT_NEAR(forward_time(row.actors, row.fixed, found), row.best, 0.005);
    EXPECT_NEAR(uniform, row.uniform, 0.005);
    if (!row.lengths.empty()) {
      EXPECT_NEAR(forward_time(row.actors, row.fixed, row.lengths), best, 1e-9);
    }
  }
  EXPECT_NEAR(forward_time(4, 0.3, {5, 3}, 2), 7.23, 0.005);
}

// Forwards take the formula's time, and so do backwards, for any slices; both together where one slice is dearest.
TEST(Sequences, TeraPipeTakesThePublishedTime) {
  for (const int p : {1, 2, 5})
    for (const std::vector<int>& lengths : std::vector<std::vector<int>>{{1}, {5, 3}, {1, 2, 3, 4}, {9, 1, 1}, {3, 3, 3, 3}}) {
      const std::vector<double> slices = slice_times(0.3, lengths);
      EXPECT_NEAR(forward_time(p, 0.3, lengths), published_time(p, slices), 1e-9);
      const int n = static_cast<int>(lengths.size());
      const Schedule both = make_schedule("terapipe", {.actors = p, .microbatches = 1, .slices = n});
      EXPECT_NEAR(makespan(both, slices), 3 * published_time(p, slices), 1e-9);
    }
}

// P_l takes 1, P_0 and P_L half of it, A_l takes `attention`, backwards twice as long. Live activations: as given for P and A.
TableTime helix(const ScheduleOptions& options, double attention, double latency = 0, double live_between = 1, double live_attention = 1) {
  const Schedule schedule = make_schedule("helixpipe", options);
  TableCosts costs = uniform_costs(schedule.stages());
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const double end = s == 0 || s + 1 == costs.stages.size() ? 0.5 : 1;
    for (double& time : costs.stages[s].time) time *= s % 2 == 1 ? attention : end;
    costs.stages[s].live = s % 2 == 1 ? live_attention : live_between * end;
  }
  return time_table(schedule, shape_of(schedule), costs, {.network = every_link(latency)});
}

TEST(Sequences, HelixPipe) {
  struct Row {
    ScheduleOptions options;
    double attention, latency, forward, both;
  };
  const ScheduleOptions one{.actors = 4, .microbatches = 4, .chunks = 2};
  const ScheduleOptions rounds{.actors = 4, .microbatches = 8, .chunks = 2}, folds{.actors = 4, .microbatches = 8, .chunks = 2, .group = 2};
  const std::vector<Row> rows = {
      {one, 1, 0, 19, 57},     {one, 3, 0, 35, 105},   {one, 9, 0, 83, 249},   {{.actors = 2, .microbatches = 2, .chunks = 2}, 1, 0, 9, 27},
      {rounds, 3, 0, 67, 201}, {folds, 3, 0, 68, 204}, {one, 3, 0.5, 42, 119}, {folds, 3, 0.5, 69.5, 207}};
  for (const Row& row : rows) {
    SCOPED_TRACE(concat(row.options.actors, " actors, ", row.options.microbatches, " micro-batches, group ", row.options.group, ", ",
                        row.attention, ", latency ", row.latency));
    ScheduleOptions forward = row.options;
    forward.forward_only = true;
    EXPECT_DOUBLE_EQ(helix(forward, row.attention, row.latency).makespan, row.forward);
    EXPECT_DOUBLE_EQ(helix(row.options, row.attention, row.latency).makespan, row.both);
  }
  EXPECT_EQ(helix(one, 3, 0, 1, 0).peak_live, (std::vector<double>{8, 8, 8, 8}));
  EXPECT_EQ(helix(one, 3, 0, 0, 1).peak_live, (std::vector<double>{8, 8, 8, 8}));
}

// (p-1) of a layer's rest is idle in the forwards, whatever attention takes, and as many layers and rounds there are.
TEST(Sequences, HelixPipeHidesAttention) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int chunks : {1, 2, 3}) {
      for (const int rounds : {1, 2, 3}) {
        for (const double attention : {0.0, 0.5, 1.0, 3.0, 10.0}) {
          SCOPED_TRACE(concat("p ", p, ", chunks ", chunks, ", rounds ", rounds, ", attention ", attention));
          const double busy = chunks * p * rounds * (1 + attention);
          const ScheduleOptions options{.actors = p, .microbatches = p * rounds, .chunks = chunks};
          const TableTime time = helix(options, attention);
          EXPECT_DOUBLE_EQ(time.makespan, 3 * (busy + p - 1));
          EXPECT_EQ(time.busy, std::vector<double>(at(p), 3 * busy));
        }
      }
    }
  }
}

TEST(Sequences, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { make_schedule("helixpipe", {.actors = 4, .microbatches = 6}); }),
            "helixpipe: 6 micro-batches are not whole rounds of 4\n  a round has 1 for each of 4 actors\n  hint: use --microbatches 8");
  EXPECT_EQ(message_of([] { make_schedule("helixpipe", {.actors = 4, .microbatches = 4, .group = 2}); }),
            "helixpipe: 4 micro-batches are not whole rounds of 8\n  a round has 2 for each of 4 actors\n  hint: use --microbatches 8");
  EXPECT_TRUE(message_of([] { make_schedule("slimpipe", {.chunks = 2}); }).starts_with("slimpipe takes one stage per actor, not 2 chunks"));
  EXPECT_EQ(message_of([] { make_schedule("slimpipe", {.head_shards = 0}); }), "slimpipe: --head-shards must be at least 1, not 0");
  EXPECT_EQ(message_of([] { make_schedule("slimpipe", {.head_shards = 5000}); }), "slimpipe: --head-shards must be at most 4096, not 5000");
  EXPECT_TRUE(message_of([] { make_schedule("terapipe", {.head_shards = 2}); }).starts_with("terapipe takes no --head-shards"));
  EXPECT_TRUE(message_of([] { make_schedule("slimpipe", {.in_flight = 2}); }).starts_with("slimpipe takes no --in-flight"));
}

}  // namespace
}  // namespace penstock
