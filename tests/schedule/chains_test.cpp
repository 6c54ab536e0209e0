// SPDX-License-Identifier: Apache-2.0
// Schedules of chains: the times and peaks published of each, the formulas in their head comments, and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/schedule.h"
#include "penstock/search.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/table_times.h"

namespace penstock {
namespace {

using test::every_link;
using test::message_of;
using test::Times;
using test::times;

Network last_link(int actors, double latency) {
  Network network;
  network.between[{actors - 2, actors - 1}] = network.between[{actors - 1, actors - 2}] = {.latency = latency};
  return network;
}

std::vector<double> all(int actors, double peak) {
  return std::vector<double>(static_cast<std::size_t>(actors), peak);
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t a = 0; a < found.size(); ++a) EXPECT_NEAR(found[a], expected[a], 1e-9) << "actor " << a;
}

// p = 2, 3, 4, 8 and m from p to 4p.
template <class Test>
void for_each_size(const Test& test) {
  for (const int p : {2, 3, 4, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      SCOPED_TRACE(concat("p ", p, ", m ", m));
      test(p, m);
    }
  }
}

TEST(Chains, BreadthFirst) {
  const Times published = times("breadth-first", {.actors = 4, .microbatches = 8, .chunks = 2});
  EXPECT_DOUBLE_EQ(published.makespan, 28.5);
  expect_near(published.peak, all(4, 8));
  for_each_size([](int p, int m) {
    for (const int v : {1, 2, 3}) {
      const Times t = times("breadth-first", {.actors = p, .microbatches = m, .chunks = v});
      EXPECT_NEAR(t.makespan, 3 * m + 3.0 * (p - 1) / v, 1e-9);
      expect_near(t.peak, all(p, m));
    }
  });
}

TEST(Chains, DappleWarmUps) {
  EXPECT_EQ(times("1f1b", {.actors = 4, .microbatches = 8, .in_flight = 3}).makespan, 48);
  EXPECT_EQ(times("eager-1f1b", {.actors = 4, .microbatches = 8, .in_flight = 5}).makespan, 38);
  for_each_size([](int p, int m) {
    for (int limit = 1; limit <= 2 * p; ++limit) {
      const Times a = times("1f1b", {.actors = p, .microbatches = m, .in_flight = limit});
      const Times b = times("eager-1f1b", {.actors = p, .microbatches = m, .in_flight = limit});
      for (int i = 0; i < p; ++i) {
        const std::size_t actor = static_cast<std::size_t>(i);
        EXPECT_EQ(a.peak[actor], std::min(p - i, limit));
        EXPECT_EQ(b.peak[actor], std::min({2 * (p - i) - 1, limit, m}));
      }
      if (limit >= p) {
        EXPECT_EQ(a.makespan, 3 * m + 3 * (p - 1));
      }
      if (limit >= 2 * p - 1) {
        EXPECT_EQ(b.makespan, 3 * m + 3 * (p - 1));
      }
      // One micro-batch at a time goes all the way.
      if (limit == 1) {
        EXPECT_EQ(a.makespan, 3 * m * p);
      }
    }
  });
}

TEST(Chains, InterleavedGroups) {
  for_each_size([](int p, int m) {
    for (const int v : {1, 2, 3}) {
      for (int group = 1; group <= m; ++group) {
        const ScheduleOptions options{.actors = p, .microbatches = m, .chunks = v, .group = group};
        const Schedule table = make_schedule("interleaved-1f1b", options);
        ASSERT_EQ(message_of([&] { validate(table, chain(p * v), m); }), "no error");
        const Times t = times("interleaved-1f1b", options), zero = times("interleaved-zb", options);
        const double peak = (2 * (p - 1) + (v - 1) * std::max(group, p) + 1.0) / v;
        EXPECT_LE(t.peak[0], std::min<double>(m, peak) + 1e-9);
        EXPECT_LE(zero.peak[0], t.peak[0] + 1e-9);
        if (group < p || m % group != 0) continue;
        EXPECT_NEAR(t.makespan, 3 * m + 3.0 * (p - 1) / v, 1e-9);
        EXPECT_NEAR(t.peak[0], std::min<double>(m, peak), 1e-9);
        EXPECT_NEAR(zero.makespan, 3 * m + 1.0 * (p - 1) / v, 1e-9);
        expect_near(zero.peak, all(p, (p + (v - 1.0) * group) / v));
      }
    }
  });
  // Groups of all micro-batches wait less for links.
  const ScheduleOptions small{.actors = 4, .microbatches = 8, .chunks = 2}, large{.actors = 4, .microbatches = 8, .chunks = 2, .group = 8};
  EXPECT_DOUBLE_EQ(times("interleaved-1f1b", small, every_link(1)).makespan, 46);
  EXPECT_LT(times("interleaved-1f1b", large, every_link(1)).makespan, 46);
}

TEST(Chains, ZeroBubbleH2) {
  const Times published = times("zb-h2", {.actors = 4, .microbatches = 8});
  EXPECT_EQ(published.makespan, 27);
  EXPECT_NEAR(published.bubble, 0.111, 0.0005);
  const Times half = times("zb-h2", {.actors = 4, .microbatches = 8, .transfers = {0.5}}, every_link(0.5));
  const Times whole = times("zb-h2", {.actors = 4, .microbatches = 8, .transfers = {1}}, every_link(1));
  EXPECT_EQ(half.makespan, 29);
  EXPECT_EQ(whole.makespan, 32);
  EXPECT_EQ(*std::max_element(half.peak.begin(), half.peak.end()), 8);
  EXPECT_EQ(*std::max_element(whole.peak.begin(), whole.peak.end()), 8);
  const Times unequal = times("zb-h2", {.actors = 8, .microbatches = 20}, {}, {.input = 1.3, .weight = 0.7});
  EXPECT_NEAR(unequal.makespan, 67, 0.05);
  EXPECT_NEAR(unequal.bubble, 0.104, 0.0005);
  for_each_size([](int p, int m) {
    const Times t = times("zb-h2", {.actors = p, .microbatches = m});
    expect_near(t.peak, all(p, std::min(m, 2 * p - 1)));
    if (m >= 2 * p - 1) {
      EXPECT_EQ(t.makespan, 3 * m + p - 1);
    }
    EXPECT_GE(t.makespan, 3 * m + p - 1);
  });
}

// (p-1)(F+I-2W) between the begin of an actor's first action and the end of its last.
TEST(Chains, ZeroBubbleH2LeavesNothingIdleInAnActorsOwnSpan) {
  for_each_size([](int p, int m) {
    if (m < 2 * p - 1) return;
    const Schedule schedule = make_schedule("zb-h2", {.actors = p, .microbatches = m});
    const TableTime time = time_table(schedule, chain(p), uniform_costs(p));
    for (std::size_t a = 0; a < schedule.actors.size(); ++a) EXPECT_EQ(time.end[a].back() - time.start[a].front(), time.busy[a]);
  });
}

TEST(Chains, KForwardKBackward) {
  for_each_size([](int p, int m) {
    for (int k = 1; k <= m; ++k) {
      const ScheduleOptions options{.actors = p, .microbatches = m, .group = k};
      const Times t = times("kfkb", options);
      EXPECT_EQ(t.makespan, 3 * m + 3 * (p - 1));
      for (int i = 0; i < p; ++i) EXPECT_EQ(t.peak[static_cast<std::size_t>(i)], std::min(k * (p - i), m));
      if (m % k == 0 && k > 1) {
        EXPECT_EQ(times("kfkb", options, every_link(1)).makespan, 3 * m + 5 * (p - 1));
      }
    }
    EXPECT_EQ(make_schedule("kfkb", {.actors = p, .microbatches = m, .group = 1}).actors,
              make_schedule("1f1b", {.actors = p, .microbatches = m}).actors);
    EXPECT_EQ(make_schedule("kfkb", {.actors = p, .microbatches = m, .group = m}).actors,
              make_schedule("gpipe", {.actors = p, .microbatches = m}).actors);
  });
}

// The proven least time of a chain of 4 actors and 8 micro-batches that hold no more than `limit`.
double fastest(double limit, const Network& network) {
  const SearchProblem problem{
      .shape = chain(4), .actors = 4, .microbatches = 8, .costs = uniform_costs(4), .network = network, .memory_limit = limit};
  const SearchResult result = search_schedule(problem);
  EXPECT_TRUE(result.optimal) << limit;
  return result.time.makespan;
}

// Latency 0, 1, 2 on the last link. 32 was reported of the paper's simple greedy where this one takes 31, the least that there is.
TEST(Chains, CrossPipe) {
  const std::vector<double> small = {27, 31, 36}, large = {27, 28, 29};
  for (const int latency : {0, 1, 2}) {
    EXPECT_EQ(fastest(4, last_link(4, latency)), (std::vector<double>{27, 31, 35})[static_cast<std::size_t>(latency)]);
    EXPECT_EQ(fastest(8, last_link(4, latency)), large[static_cast<std::size_t>(latency)]);
    for (const auto& [limit, expected] : {std::pair(4, small), std::pair(8, large)}) {
      const ScheduleOptions options{.actors = 4, .microbatches = 8, .in_flight = limit, .transfers = {0, 0, static_cast<double>(latency)}};
      const Schedule table = make_schedule("crosspipe", options);
      EXPECT_EQ(message_of([&] { validate(table, chain(4), 8); }), "no error");
      const Times t = times("crosspipe", options, last_link(4, latency));
      EXPECT_EQ(t.makespan, expected[static_cast<std::size_t>(latency)]) << limit;
      EXPECT_LE(*std::max_element(t.peak.begin(), t.peak.end()), limit);
    }
  }
  for_each_size([](int p, int m) {
    EXPECT_EQ(times("crosspipe", {.actors = p, .microbatches = m}).makespan, 3 * m + p - 1);
    for (const double latency : {0.0, 0.5, 1.0, 2.0}) {
      for (int limit = 1; limit <= 2 * p; ++limit) {
        const ScheduleOptions options{.actors = p, .microbatches = m, .in_flight = limit, .transfers = {latency}};
        const Times t = times("crosspipe", options, every_link(latency));
        EXPECT_LE(*std::max_element(t.peak.begin(), t.peak.end()), limit);
      }
    }
  });
}

// Two branches of two stages, each, into a head.
StageShape two_branches() {
  return {
      .predecessors = {{}, {0}, {}, {2}, {1, 3}}, .has_backward = std::vector<bool>(5, true), .has_parameters = std::vector<bool>(5, true)};
}

// As many stages as `sizes`, a chain.
std::vector<int> ahead(const std::vector<int>& sizes) {
  return graphpipe_in_flight(chain(static_cast<int>(sizes.size())), sizes);
}

TEST(Chains, GraphPipe) {
  const StageShape shape = two_branches();
  const Schedule table = graphpipe(shape, 8);
  EXPECT_EQ(message_of([&] { validate(table, shape, 8); }), "no error");
  const TableTime time = time_table(table, shape, uniform_costs(5));
  EXPECT_EQ(time.makespan, 30);
  EXPECT_EQ(time.peak_live, (std::vector<double>{3, 2, 3, 2, 1}));
  const Times line = times("graphpipe", {.actors = 5, .microbatches = 8});
  EXPECT_EQ(line.makespan, 36);
  EXPECT_EQ(line.peak, (std::vector<double>{5, 4, 3, 2, 1}));
  EXPECT_EQ(ahead({1, 2, 4}).front(), 10);
  EXPECT_EQ(ahead({4, 4, 4}).front(), 12);
  EXPECT_EQ(ahead({8, 8, 8, 8, 8, 8, 8}), (std::vector<int>{56, 48, 40, 32, 24, 16, 8}));
  const StageShape short_branch{.predecessors = {{}, {}, {0, 1}}, .has_backward = {}, .has_parameters = {}};
  EXPECT_EQ(graphpipe_in_flight(short_branch, {8, 8, 8}), (std::vector<int>{16, 16, 8}));
  for_each_size([](int p, int m) {
    EXPECT_EQ(make_schedule("graphpipe", {.actors = p, .microbatches = m}).actors,
              make_schedule("1f1b", {.actors = p, .microbatches = m}).actors);
  });
}

// Each stage takes its own number of micro-batches at once.
TEST(Chains, GraphPipeWithSizes) {
  const StageShape shape = two_branches();
  const Schedule table = graphpipe(shape, 8, {1, 2, 2, 4, 4});
  EXPECT_EQ(message_of([&] { validate(table, shape, 8); }), "no error");
  EXPECT_EQ(text(table.actors[4].front()), "4x4F0");
  EXPECT_EQ(message_of([&] { graphpipe(shape, 8, {1, 2}); }), "graphpipe: 2 micro-batch sizes for 5 stages");
  EXPECT_EQ(message_of([&] { graphpipe(shape, 8, {1, 2, 3, 4, 4}); }),
            "graphpipe: stage 2 cannot take 3 of 8 micro-batches together\n  hint: use a divisor of the number of micro-batches");
}

TEST(Chains, ZeroPP) {
  const Times one = times("zeropp", {.actors = 4, .microbatches = 8, .unit = 8});
  EXPECT_EQ(one.makespan, 30);
  const Times two = times("zeropp", {.actors = 4, .microbatches = 8, .chunks = 2, .unit = 8});
  EXPECT_EQ(two.makespan, 27);
  EXPECT_NEAR(two.bubble, 0.111, 0.0005);
  for_each_size([](int p, int m) {
    for (const int v : {1, 2, 3}) {
      const double least = 3 * m + 2.0 * (p - 1) / v;
      EXPECT_NEAR(times("zeropp", {.actors = p, .microbatches = m, .chunks = v}).makespan, least, 1e-9);
      if (v == 2) {
        EXPECT_LE(least, times("zb-h1", {.actors = p, .microbatches = m}).makespan);
      }
      for (int unit = 1; unit <= m; ++unit) {
        const Times t = times("zeropp", {.actors = p, .microbatches = m, .chunks = v, .unit = unit});
        expect_near(t.peak, all(p, unit));
        EXPECT_GE(t.makespan, least - 1e-9);
        if (m % unit == 0) {
          const double one_way = ((v - 1) * std::max(unit, p) + p - 1 + unit) / (1.0 * v);  // of a unit, through all chunks
          EXPECT_LE(t.makespan, (m / unit) * (2 * one_way + unit) + 1e-9);
        }
      }
    }
  });
}

// Twice a unit each chunk is gathered and given back, once its gradients are reduced; no more than two are there at a time.
TEST(Chains, ZeroPPGathersOncePerUnitAndDirection) {
  for_each_size([](int p, int m) {
    for (const int v : {1, 2, 4}) {
      for (int unit = 1; unit <= m; ++unit) {
        const Schedule table = make_schedule("zeropp", {.actors = p, .microbatches = m, .chunks = v, .unit = unit});
        validate(table, chain(p * v), m);
        const int units = (m + unit - 1) / unit;
        for (const auto& row : table.actors) {
          std::map<std::int32_t, int> gathered, gathers, reduced;
          int here = 0, most = 0;
          for (const Action& action : row) {
            if (action.kind == Kind::UNSHARD) {
              EXPECT_EQ(gathered[action.stage]++, 0);
              ++gathers[action.stage];
              most = std::max(most, ++here);
            } else if (action.kind == Kind::RESHARD) {
              EXPECT_EQ(gathered[action.stage]--, 1);
              --here;
            } else if (action.kind == Kind::REDUCE_GRAD) {
              ++reduced[action.stage];
            } else if (action.kind != Kind::W) {
              EXPECT_EQ(gathered[action.stage], 1);
            }
          }
          EXPECT_LE(most, 2);
          for (int c = 0; c < v; ++c) {
            const std::int32_t stage = row.front().stage + c * p;
            EXPECT_EQ(gathers[stage], 2 * units);
            EXPECT_EQ(reduced[stage], units);
          }
        }
      }
    }
  });
}

// 1024 actors and 4096 micro-batches: made, checked and timed.
TEST(Chains, VeryLargeTables) {
  const Schedule table = make_schedule("1f1b", {.actors = 1024, .microbatches = 4096});
  validate(table, chain(1024), 4096);
  EXPECT_EQ(time_table(table, chain(1024), uniform_costs(1024)).makespan, 3 * 4096 + 3 * 1023);
}

TEST(Chains, MistakesAreNamed) {
  const auto message = [](std::string_view name, const ScheduleOptions& options) {
    return message_of([&] { make_schedule(name, options); });
  };
  EXPECT_EQ(message("gpipe", {.in_flight = 2}),
            "gpipe takes no --in-flight\n  hint: schedules that do: 1f1b, eager-1f1b, crosspipe, pipedream, pipedream-2bw, hetpipe, "
            "layerpipe, xpipe, "
            "pipeoptim");
  EXPECT_TRUE(message("1f1b", {.group = 2})
                  .starts_with("1f1b takes no --group\n  it takes --in-flight, --self-conditioning\n  hint: "
                               "schedules that do: interleaved-1f1b, "));
  EXPECT_TRUE(message("1f1b", {.unit = 2})
                  .starts_with("1f1b takes no --unit\n  it takes --in-flight, --self-conditioning\n  hint: "
                               "schedules that do: zeropp"));
  EXPECT_TRUE(message("1f1b", {.transfers = {1}})
                  .starts_with("1f1b takes no --transfers\n  it takes --in-flight, --self-conditioning\n  hint: "
                               "schedules that do: zb-h2, crosspipe"));
  EXPECT_EQ(message("1f1b", {.balance = {1, 2}}),
            "1f1b takes no --balance\n  it takes --in-flight, --self-conditioning\n  hint: schedules that do: "
            "bidirectional, layerpipe");
  EXPECT_EQ(message("layerpipe", {.actors = 3, .balance = {1, 2}}),
            "layerpipe: --balance gives 2 times for 3 actors\n  hint: give one for each actor's stage");
  EXPECT_EQ(message("bidirectional", {.actors = 4, .chunks = 2, .balance = {1, 2, 3}}),
            "bidirectional: --balance gives 3 times for 2 backbones\n  hint: give one for each backbone's stages");
  EXPECT_EQ(message("layerpipe", {.actors = 2, .balance = {1, 0}}), "layerpipe: --balance must be above 0 and at most 1e6, not 0.0");
  EXPECT_EQ(message("1f1b", {.in_flight = -1}), "1f1b: --in-flight must be at least 1, not -1");
  EXPECT_EQ(message("zb-h2", {.actors = 4, .transfers = {1, 2}}),
            "zb-h2: --transfers gives 2 times for the 3 links of 4 actors\n  hint: give one for all links, or one for each");
  EXPECT_EQ(message("zb-h2", {.actors = 4, .transfers = {-1.5}}), "zb-h2: --transfers must be from 0 to 1e6, not -1.5");
  EXPECT_EQ(message("zeropp", {.actors = 4, .microbatches = 8, .unit = 9}),
            "zeropp: a unit of 9 micro-batches of 8\n  hint: use --unit from 1 to 8");
}

}  // namespace
}  // namespace penstock
