// SPDX-License-Identifier: Apache-2.0
// Schedules on folded placements and with replicas: times, peaks and preconditions as published, or as their head comments say where the
// table shows that what is published does not hold.
#include <gtest/gtest.h>

#include <algorithm>

#include "penstock/schedule.h"
#include "penstock/table.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

struct Case {
  ScheduleOptions options;
  double latency = 0;
  UnitCosts costs = {};
  bool atomic = false;
};

// F=1, B=2 (I=W=1) for an actor's whole share: a chunk costs 1/chunks; live activations count alike.
TableTime timed(std::string_view name, const Case& c) {
  const Schedule schedule = make_schedule(name, c.options);
  return time_table(schedule, chain(schedule.stages()), uniform_costs(schedule.stages(), c.costs, 1.0 / c.options.chunks),
                    {.network = {.link = {.latency = c.latency}}, .atomic_pairs = c.atomic});
}

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

constexpr UnitCosts kEqual = {.forward = 1, .backward = 1, .input = 0.5, .weight = 0.5};  // b = f

// p = 2, 3, 4 and 8, and all m from p to 4p.
template <class Visit>
void for_each_shape(Visit&& visit) {
  for (int p : {2, 3, 4, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      SCOPED_TRACE(testing::Message() << "p " << p << " m " << m);
      visit(p, m);
    }
  }
}

TEST(Folded, ZeroBubbleV) {
  for_each_shape([](int p, int m) {
    const TableTime t = timed("zb-v", {{.actors = p, .microbatches = m, .chunks = 2}});
    EXPECT_DOUBLE_EQ(t.makespan, 3 * m + std::max((p - 1) / 2.0, 2.0 * p - 1 - m));
    EXPECT_EQ(largest(t.peak_live), p);
    if (m < 2 * p - 1) return;
    EXPECT_EQ(t.peak_live, std::vector<double>(static_cast<std::size_t>(p), p));
    for (std::size_t a = 0; a < t.start.size(); ++a) {
      EXPECT_DOUBLE_EQ(t.end[a].back() - t.start[a].front(), 3 * m) << "actor " << a << " has no bubble in its own span";
    }
  });
}

TEST(Folded, VHalfHasHalfOf1F1BsBubbleAndMemory) {
  for_each_shape([](int p, int m) {
    const TableTime t = timed("v-half", {{.actors = p, .microbatches = m, .chunks = 2}});
    EXPECT_DOUBLE_EQ(t.makespan, 3 * m + 1.5 * (p - 1) - (p % 2 == 0 ? 0 : 0.5));
    EXPECT_EQ(largest(t.peak_live), p / 2 + 1);
  });
}

TEST(Folded, VMinHasAThirdOf1F1BsMemory) {
  for_each_shape([](int p, int m) {
    const TableTime t = timed("v-min", {{.actors = p, .microbatches = m, .chunks = 2}});
    EXPECT_DOUBLE_EQ(t.makespan, 3 * m + 2 * (p - 1) + (p % 3 == 0 ? 0.5 : -0.5));
    EXPECT_EQ(largest(t.peak_live), (p + 4) / 3);
  });
}

// Where F, I and W differ, V-Min's short waits repeat in every period and V-Half's do not.
TEST(Folded, UnequalCostsGrowVMinsBubble) {
  const auto bubble = [](const char* name, int m) {
    return timed(name, {{.actors = 4, .microbatches = m, .chunks = 2}, 0, {.input = 1.3, .weight = 0.7}}).makespan - 3 * m;
  };
  EXPECT_NEAR(bubble("v-half", 32), bubble("v-half", 8), 1e-9);
  EXPECT_GT(bubble("v-min", 32), 2 * bubble("v-min", 8));
}

// The reference rows, p=4, m=8: makespan, peak, and makespans at latencies 0.5 and 1 on every link.
TEST(Folded, DualPipeVReferenceRows) {
  struct Row {
    const char* name;
    bool split, atomic;
    double makespan, half, one;
  };
  const std::vector<double> peak(4, 4.5);
  for (const Row& row : {Row{"dualpipe-v-jaxpp", true, false, 26.5, 32, 41}, Row{"dualpipe-v", true, false, 25.5, 32, 41},
                         Row{"dualpipe-v", false, true, 27, 37.5, 48.5}, Row{"dualpipe-v", false, false, 25.5, 34, 45}}) {
    SCOPED_TRACE(testing::Message() << row.name << (row.split ? " split" : "") << (row.atomic ? " atomic" : ""));
    Case c{{.actors = 4, .microbatches = 8, .chunks = 2, .split_backward = row.split}};
    c.atomic = row.atomic;
    const TableTime t = timed(row.name, c);
    EXPECT_DOUBLE_EQ(t.makespan, row.makespan);
    EXPECT_EQ(t.peak_live, peak);
    c.latency = 0.5;
    EXPECT_DOUBLE_EQ(timed(row.name, c).makespan, row.half);
    c.latency = 1;
    EXPECT_DOUBLE_EQ(timed(row.name, c).makespan, row.one);
  }
}

TEST(Folded, DualPipeVPublishedBubbles) {
  const auto bubble = [](const char* name, int m, bool split, bool atomic, const UnitCosts& costs = {}) {
    return timed(name, {{.actors = 8, .microbatches = m, .chunks = 2, .split_backward = split}, 0, costs, atomic}).bubble();
  };
  EXPECT_NEAR(bubble("dualpipe-v-jaxpp", 32, false, true), 0.107, 0.0005);
  EXPECT_NEAR(bubble("dualpipe-v-jaxpp", 32, true, false), 0.072, 0.0005);
  EXPECT_NEAR(bubble("dualpipe-v", 32, false, true), 0.068, 0.0005);
  EXPECT_NEAR(bubble("dualpipe-v", 32, true, false), 0.035, 0.0005);
  EXPECT_NEAR(bubble("dualpipe-v", 20, false, true, {.input = 1.3, .weight = 0.7}), 0.1365, 0.0025);  // 13.4 to 13.9
}

TEST(Folded, DualPipeFormulas) {
  for_each_shape([](int p, int m) {
    if (m < 2 * p) return;
    for (bool atomic : {false, true}) {
      const double pair = atomic ? 1 : 0.5;
      Case c{{.actors = p, .microbatches = m, .chunks = 2}};
      c.atomic = atomic;
      const TableTime v = timed("dualpipe-v", c);
      EXPECT_DOUBLE_EQ(v.makespan, 3 * m + pair * (p - 1));  // (p-1)(F&B+B-3W) with F=I=W=1/2
      EXPECT_EQ(v.peak_live, std::vector<double>(static_cast<std::size_t>(p), (2 * p + 1) / 2.0));
      const double jaxpp = timed("dualpipe-v-jaxpp", c).makespan - v.makespan;
      EXPECT_DOUBLE_EQ(jaxpp, p < 4 ? 0.5 : p == 4 ? 1.5 : 4.5);
      if (p % 2 != 0 || m % 2 != 0) continue;
      c.options.chunks = 1;
      const TableTime both = timed("dualpipe", c);
      EXPECT_DOUBLE_EQ(both.makespan, 3 * m + pair * 2 * (p / 2 - 1));  // (p/2-1)(F&B+B-3W)
      EXPECT_EQ(both.peak_live, std::vector<double>(static_cast<std::size_t>(p), p + 1));
    }
  });
}

// Bubble of the three schedules that list scheduling makes, B=2F: e is their bubble where B=F, `more` comes on top from the second unit on.
double units_bubble(double e, double more, int m, int p) {
  return 2 * e + (m > p ? std::max(more, 0.0) : 0);
}

TEST(Folded, Chimera) {
  EXPECT_EQ(timed("chimera", {{.actors = 4, .microbatches = 4}}).makespan, 16);
  EXPECT_EQ(timed("chimera", {{.actors = 4, .microbatches = 4}}).peak_live, (std::vector<double>{3, 4, 4, 3}));
  EXPECT_EQ(timed("chimera", {{.actors = 8, .microbatches = 8}}).makespan, 36);
  EXPECT_EQ(timed("chimera", {{.actors = 8, .microbatches = 32}}).makespan, 108);  // 1F1B: 117
  for_each_shape([](int p, int m) {
    if (p % 2 != 0) return;
    const Case c{{.actors = p, .microbatches = m}};
    const TableTime t = timed("chimera", c), equal = timed("chimera", {c.options, 0, kEqual});
    const int units = (m + p - 1) / p;
    EXPECT_LE(largest(t.peak_live), p);
    if (m % p != 0) {
      EXPECT_LE(t.makespan, 3 * units * p + units_bubble(p - 2, 0, m, p));
      return;
    }
    EXPECT_DOUBLE_EQ(t.makespan, 3 * m + units_bubble(p - 2, 0, m, p));
    EXPECT_NEAR(equal.bubble(), (p - 2.0) / (2 * m + p - 2), 1e-12);
    EXPECT_NEAR(t.bubble(), (p - 2) / (1.5 * m + p - 2), 1e-12);
    if (m > p) return;
    for (int a = 0; a < p; ++a) EXPECT_EQ(t.peak_live[static_cast<std::size_t>(a)], p / 2 + 1 + std::min({a, p - 1 - a, p / 2 - 1}));
  });
}

TEST(Folded, BitPipe) {
  const TableTime four = timed("bitpipe", {{.actors = 4, .microbatches = 4, .chunks = 2}});
  EXPECT_EQ(four.makespan, 14);
  EXPECT_NEAR(four.bubble(), 0.143, 0.0005);
  EXPECT_EQ(four.peak_live, (std::vector<double>{3.5, 4, 4, 3.5}));
  const TableTime eight = timed("bitpipe", {{.actors = 8, .microbatches = 8, .chunks = 2}});
  EXPECT_NEAR(eight.bubble(), 0.2, 1e-12);
  EXPECT_EQ(eight.peak_live, (std::vector<double>{6.5, 7, 7.5, 8, 8, 7.5, 7, 6.5}));
  for_each_shape([](int p, int m) {
    if (p % 2 != 0) return;
    const Case c{{.actors = p, .microbatches = m, .chunks = 2}};
    const TableTime t = timed("bitpipe", c), equal = timed("bitpipe", {c.options, 0, kEqual});
    const int units = (m + p - 1) / p;
    EXPECT_LE(largest(t.peak_live), p);
    if (m % p != 0) {
      EXPECT_LE(t.makespan, 3 * units * p + units_bubble((p - 2) / 2.0, (p - 6) / 2.0, m, p));
      return;
    }
    EXPECT_DOUBLE_EQ(t.makespan, 3 * m + units_bubble((p - 2) / 2.0, (p - 6) / 2.0, m, p));
    EXPECT_NEAR(equal.bubble(), (p - 2.0) / (4 * m + p - 2), 1e-12);
    if (m > p) return;
    EXPECT_NEAR(t.bubble(), (p - 2.0) / (3 * m + p - 2), 1e-12);
  });
}

TEST(Folded, Hanayo) {
  for (int waves : {1, 2, 3}) {
    for_each_shape([waves](int p, int m) {
      const Case c{{.actors = p, .microbatches = m, .chunks = 2 * waves}};
      const TableTime t = timed("hanayo", c), equal = timed("hanayo", {c.options, 0, kEqual});
      const int units = (m + p - 1) / p;
      const double e = (p - 1.0) / waves, more = waves > 1 ? (p - 3.0) / waves : 0;
      EXPECT_LE(largest(t.peak_live), p + 1e-9);
      EXPECT_LE(t.makespan, 3 * units * p + units_bubble(e, more, m, p) + 1e-9);
      if (m % p != 0) return;
      EXPECT_NEAR(t.makespan, 3 * m + units_bubble(e, more, m, p), 1e-9);
      EXPECT_NEAR(equal.makespan, 2 * m + e, 1e-9);
      // The published claim, where it holds.
      if (m == p && p % 2 == 0 && p >= 4) {
        const double bidirectional = timed("chimera", {{.actors = p, .microbatches = m}}).makespan;
        EXPECT_EQ(t.makespan < bidirectional, waves > 1);
      }
    });
  }
}

// One wave is the V placement.
TEST(Folded, OneWaveIsAV) {
  const ScheduleOptions options{.actors = 4, .microbatches = 8, .chunks = 2};
  EXPECT_EQ(actor_of_stage(make_schedule("hanayo", options)), actor_of_stage(make_schedule("zb-v", options)));
  EXPECT_EQ(actor_of_stage(make_schedule("hanayo", options)), (std::vector<std::int32_t>{0, 1, 2, 3, 3, 2, 1, 0}));
}

// A stage has two actors, and each micro-batch one of them.
TEST(Folded, ReplicasShareTheMicrobatches) {
  for (const char* name : {"dualpipe", "chimera"}) {
    const Schedule schedule = make_schedule(name, {.actors = 4, .microbatches = 8});
    std::vector<std::vector<int>> forwards(4, std::vector<int>(4, 0));
    for (std::size_t a = 0; a < 4; ++a) {
      for (const Action& action : schedule.actors[a]) forwards[a][static_cast<std::size_t>(action.stage)] += action.kind == Kind::F;
    }
    for (std::size_t a = 0; a < 4; ++a) {
      std::vector<int> expected(4, 0);
      expected[a] = expected[3 - a] = 4;
      EXPECT_EQ(forwards[a], expected) << name << " actor " << a;
    }
  }
}

TEST(Folded, PairsRunInOnePieceOrOneAfterTheOther) {
  const Schedule schedule = parse_schedule("(0F0;0B0)OVERLAP_F_B\n1F0,1B0\n", "plan.csv");
  const StageShape shape = chain(2);
  EXPECT_EQ(time_table(schedule, shape, uniform_costs(2)).makespan, 6);
  EXPECT_EQ(message_of([&] { time_table(schedule, shape, uniform_costs(2), {.atomic_pairs = true}); }),
            "0F0 on actor 0 can never run if fused pairs are one piece of work\n"
            "  both of a pair begin when all that both need is there, and end together\n"
            "  hint: take the pairs apart, or let them run one action after the other");
  // 0F1 waits for 0B0's gradient, and 1F1 for the end of both.
  const Schedule pairs = parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n", "plan.csv");
  const TableTime one = time_table(pairs, shape, uniform_costs(2), {.record = true}),
                  atomic = time_table(pairs, shape, uniform_costs(2), {.atomic_pairs = true, .record = true});
  EXPECT_EQ(one.start[0], (std::vector<double>{0, 1, 4, 7}));
  EXPECT_EQ(atomic.start[0], (std::vector<double>{0, 4, 5, 10}));
  EXPECT_EQ(atomic.start[1], (std::vector<double>{1, 2, 7, 8}));
  EXPECT_EQ(atomic.makespan, 12);
  EXPECT_EQ(atomic.order.size(), 8u);
}

TEST(Folded, SplitBackwardsLeaveNoPairs) {
  const Schedule schedule = make_schedule("dualpipe-v", {.actors = 2, .microbatches = 4, .chunks = 2, .split_backward = true});
  for (const auto& row : schedule.actors) {
    for (const Action& action : row) {
      EXPECT_FALSE(action.fused_with_next);
      EXPECT_NE(action.kind, Kind::B);
    }
  }
  EXPECT_EQ(message_of([&] { validate(schedule, chain(4), 4); }), "no error");
}

TEST(Folded, PreconditionsAreNamed) {
  for (const char* name : {"zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe-v-jaxpp", "bitpipe"}) {
    for (int chunks : {1, 3}) {
      EXPECT_EQ(message_of([&] { make_schedule(name, {.actors = 2, .microbatches = 8, .chunks = chunks}); }),
                std::string(name) + " gives each actor two stages, not " + std::to_string(chunks) +
                    "\n  its stages go down the actors and come back: actor r of p has stages r and 2p-1-r\n  hint: chunks 2");
    }
  }
  for (const char* name : {"dualpipe", "chimera", "bitpipe"}) {
    const int chunks = std::string_view(name) == "bitpipe" ? 2 : 1;
    EXPECT_EQ(
        message_of([&] { make_schedule(name, {.actors = 3, .microbatches = 6, .chunks = chunks}); }),
        std::string(name) +
            " needs an even number of actors, not 3\n  two directions share the actors; a middle actor would hold one stage for both\n"
            "  hint: 2 or 4 actors");
  }
  EXPECT_EQ(message_of([] { make_schedule("chimera", {.actors = 1}); }),
            "chimera needs an even number of actors, not 1\n"
            "  two directions share the actors; a middle actor would hold one stage for both\n  hint: 2 actors");
  EXPECT_EQ(message_of([] { make_schedule("hanayo", {.actors = 2, .chunks = 3}); }),
            "hanayo needs an even number of chunks, not 3\n  each of its waves goes down the actors and back up\n  hint: 2 or 4 chunks");
  EXPECT_EQ(
      message_of([] { make_schedule("dualpipe-v", {.actors = 4, .microbatches = 7, .chunks = 2}); }),
      "dualpipe-v needs at least as many micro-batches as stages: 8, not 7\n  hint: 8 micro-batches, or zb-v, which takes any number");
  EXPECT_EQ(message_of([] { make_schedule("dualpipe", {.actors = 4, .microbatches = 9}); }),
            "dualpipe needs an even number of micro-batches, not 9\n  each direction takes half of them\n  hint: 10 micro-batches");
  EXPECT_EQ(message_of([] { make_schedule("dualpipe", {.actors = 4, .microbatches = 6}); }),
            "dualpipe needs two micro-batches per actor: 8, not 6\n  each direction needs as many as stages\n  hint: 8 micro-batches");
}

}  // namespace
}  // namespace penstock
