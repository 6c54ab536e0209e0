// SPDX-License-Identifier: Apache-2.0
// Tables under costs and links: the published times, the rules applied literally, and what holds for every table.
#include "penstock/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "schedule/table_live.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

Network every_link(double latency) {
  return {.link = {.latency = latency}};
}

Network one_link(std::int32_t a, std::int32_t b, double latency) {
  Network network;
  network.between[{a, b}] = network.between[{b, a}] = {.latency = latency};
  return network;
}

// The published times at latency 0, 1 and 2 on link 2-3 only; those without a link's own latency are tests/schedule/generators_test.cpp's.
TEST(Table, OneSlowLink) {
  const std::vector<std::pair<std::string, std::vector<double>>> rows = {{"1f1b", {33, 41, 49}}, {"zb-h1", {27, 34, 42}}};
  for (const auto& [name, makespans] : rows) {
    const Schedule schedule = make_schedule(name, {.actors = 4, .microbatches = 8});
    for (int latency = 0; latency <= 2; ++latency) {
      const TableTime time = time_table(schedule, chain(4), uniform_costs(4), {.network = one_link(2, 3, latency)});
      EXPECT_EQ(time.makespan, makespans[at(latency)]) << name;
    }
  }
}

// F0 of 4 bytes leaves at 1 and is there at 1 + 4/2 + 3; F1 waits for the link until 3.
TEST(Table, ATransferOccupiesItsLinkAndArrivesLater) {
  const Schedule schedule = parse_schedule("0F0,0F1\n1F0,1F1\n", "two.csv");
  const TableOptions options = {.network = {.link = {.latency = 3, .bandwidth = 2}}, .record = true};
  const TableTime time = time_table(schedule, chain(2, true), uniform_costs(2, {.bytes = 4}), options);
  EXPECT_EQ(time.start[1], (std::vector<double>{6, 8}));
  EXPECT_EQ(time.makespan, 9);
  ASSERT_EQ(time.transfers.size(), 2u);
  EXPECT_EQ(time.transfers[0].begin, 1);
  EXPECT_EQ(time.transfers[0].end, 6);
  EXPECT_EQ(time.transfers[1].begin, 3);
  EXPECT_EQ(time.transfers[1].end, 8);
  EXPECT_EQ(time.transfers[0].behind, -1);
  EXPECT_EQ(time.transfers[1].behind, 0);
}

// Stage 0 feeds stages 1 and 2 on one actor: its output goes there once. Their gradients are two transfers.
TEST(Table, OneTransferForEachActorThatNeedsAnAction) {
  StageShape shape = chain(3);
  shape.predecessors[2] = {0};
  const TableOptions options = {.network = {.link = {.bandwidth = 4}}, .record = true};
  const Schedule schedule = parse_schedule("0F0,0B0\n1F0,2F0,1B0,2B0\n", "fan.csv");
  const TableTime time = time_table(schedule, shape, uniform_costs(3, {.bytes = 4}), options);
  ASSERT_EQ(time.transfers.size(), 3u);
  EXPECT_EQ(time.transfers[0].bytes, 4);
  EXPECT_EQ(time.makespan, 1 + 1 + 1 + 1 + 2 + 2 + 1 + 2);
}

// Micro-batches in one action cost, weigh and travel together: the two outputs for actor 1 in one transfer, the one for actor 2 in another.
TEST(Table, ActionsOfSeveralMicrobatches) {
  const Schedule schedule = parse_schedule("0x3F0,0x3B0\n1x2F0,1x2B0\n1F2,1B2\n", "counts.csv");
  const TableOptions options = {.network = {.link = {.latency = 1, .bandwidth = 4}}, .record = true};
  const TableTime time = time_table(schedule, chain(2), uniform_costs(2, {.bytes = 4}), options);
  EXPECT_EQ(time.start[1][0], 3 + 2 + 1);
  EXPECT_EQ(time.start[2][0], 3 + 1 + 1);
  EXPECT_EQ(time.end[1][1], 6 + 2 + 4);
  EXPECT_EQ(time.start[0][1], 12 + 2 + 1);
  EXPECT_EQ(time.peak_live, (std::vector<double>{3, 2, 1}));
  EXPECT_EQ(time.transfers.size(), 4u);
}

// The sum of a stage's gradients is there from its first backward until it has been reduced; one that is never reduced counts elsewhere.
TEST(Table, SumsOfGradientsUntilTheyAreReduced) {
  TableCosts stages = uniform_costs(2, {.reduce = 2});
  for (StageCosts& stage : stages.stages) stage.gradients = 10;
  const auto peak = [&](const std::string& row) {
    const Schedule schedule = parse_schedule(row, "row.csv");
    return time_table(schedule, shape_of(schedule), stages).peak_live[0];
  };
  EXPECT_NEAR(peak("0F0,1F0,1B0,0B0\n"), 2, 1e-9);
  EXPECT_NEAR(peak("0F0,1F0,1B0,1REDUCE_GRAD,0B0\n"), 10 + 2, 1e-9);
  EXPECT_NEAR(peak("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n"), 20 + 1, 1e-9) << "the first is reduced while the second is summed";
  EXPECT_NEAR(peak("0F0,0F1,0I0,0W0,0REDUCE_GRAD,0I1,0W1,0REDUCE_GRAD\n"), 20 + 1, 1e-9);
}

// Links of one medium take turns in the order in which their transfers are ready, not in that of actors.
TEST(Table, LinksOfOneMediumShareIt) {
  StageShape shape = chain(4, true);
  shape.predecessors = {{}, {}, {0}, {1}};
  const Schedule schedule = parse_schedule("0F0\n1F0\n2F0\n3F0\n", "pairs.csv");
  TableCosts costs = uniform_costs(4, {.bytes = 8});
  costs.stages[0].time[0] = 2;
  const auto ends = [&](std::int32_t medium) {
    return time_table(schedule, shape, costs, {.network = {.link = {.latency = 1, .bandwidth = 1, .medium = medium}}}).end;
  };
  EXPECT_EQ(ends(-1), (std::vector<std::vector<double>>{{2}, {1}, {12}, {11}}));
  EXPECT_EQ(ends(0), (std::vector<std::vector<double>>{{2}, {1}, {19}, {11}}));
}

// Its activations stay with the forward until the weight gradient has ended elsewhere.
TEST(Table, AWeightGradientElsewhereKeepsItsActivations) {
  const Schedule schedule = parse_schedule("0F0,0I0,0F1,0I1\n0W0,0W1\n", "away.csv");
  const TableTime time = time_table(schedule, chain(1), uniform_costs(1), {.network = every_link(1)});
  EXPECT_EQ(time.start[1], (std::vector<double>{3, 5}));
  EXPECT_EQ(time.peak_live, (std::vector<double>{2, 0}));
  EXPECT_EQ(time.peak_time[0], 2);
}

TableTime alone(const std::string& row, const UnitCosts& costs) {
  const Schedule schedule = parse_schedule(row, "one.csv");
  validate(schedule, shape_of(schedule));
  return time_table(schedule, shape_of(schedule), uniform_costs(schedule.stages(), costs));
}

// What is computed again is not held before: of the other micro-batch only what entered the stage.
TEST(Table, RecomputationTakesTimeForMemory) {
  const UnitCosts costs{.recompute = 0.5, .kept = 0.25};
  const TableTime time = alone("0F0,0F1,0B0,0R1,0B1\n", costs);
  EXPECT_EQ(time.makespan, 1 + 1 + 2 + 0.5 + 2);
  EXPECT_EQ(time.busy[0], time.makespan);
  EXPECT_EQ(time.peak_live[0], 1.25);
  EXPECT_EQ(alone("0F0,0F1,0B0,0R1,0B1\n", {}).makespan, 1 + 1 + 2 + 1 + 2) << "as long as F unless said";
  EXPECT_EQ(alone("0F0,0R0,0I0,0W0\n", costs).peak_live[0], 1);
}

// Copies run beside compute, one at a time and in the order of the row: what is away lives until it has gone and from where it comes back.
TEST(Table, OffloadingTakesALaneForMemory) {
  const UnitCosts costs{.offload = 1, .kept = 0.25};
  const TableTime late = alone("0F0,0OFFLOAD0,0F1,0F2,0B2,0B1,0RELOAD0,0B0\n", costs);
  EXPECT_EQ(late.start[0], (std::vector<double>{0, 1, 1, 2, 3, 5, 7, 8}));
  EXPECT_EQ(late.makespan, 10);
  EXPECT_EQ(late.busy[0], 9);
  EXPECT_EQ(late.peak_live[0], 2.25);
  EXPECT_EQ(late.peak_time[0], 2);
  const TableTime hidden = alone("0F0,0OFFLOAD0,0F1,0F2,0B2,0RELOAD0,0B1,0B0\n", costs);
  EXPECT_EQ(hidden.makespan, 9);
  EXPECT_EQ(hidden.peak_live[0], 2.25);
  EXPECT_EQ(alone("0F0,0F1,0OFFLOAD0,0OFFLOAD1,0RELOAD1,0B1,0RELOAD0,0B0\n", costs).start[0],
            (std::vector<double>{0, 1, 2, 3, 4, 5, 7, 8}));
}

// A gather is hidden behind the other stage's compute; a stage without one is always there; the update waits for the sum.
TEST(Table, CollectivesRunBesideCompute) {
  const UnitCosts costs{.gather = 1.5, .reduce = 2, .parameters = 3};
  const TableTime time = alone("0UNSHARD,0F0,1UNSHARD,0RESHARD,1F0,1B0,1REDUCE_GRAD,0UNSHARD,1RESHARD,0B0,1U\n", costs);
  EXPECT_EQ(time.start[0], (std::vector<double>{0, 1.5, 2.5, 2.5, 4, 5, 7, 9, 7, 10.5, 12.5}));
  EXPECT_EQ(time.makespan, 12.5);
  EXPECT_NEAR(time.peak_live[0], 3 + 2, 1e-9);
  EXPECT_NEAR(alone("0F0,1UNSHARD,1F0,1B0,1RESHARD,0B0\n", costs).peak_live[0], 3 + 3 + 2, 1e-9);
  EXPECT_EQ(alone("0F0,0B0,0REDUCE_GRAD\n", costs).makespan, 3 + 2) << "the step ends with what runs beside";
}

// All slices of a stage wait for its one gather, and have its parameters while any has.
TEST(Table, SlicesShareCollectives) {
  const UnitCosts costs{.gather = 1.5, .reduce = 2, .parameters = 3};
  const TableTime time = alone("0UNSHARD,0.0F0,0.1F0,0RESHARD,0UNSHARD,0.1B0,0.0B0,0RESHARD,0REDUCE_GRAD,0U\n", costs);
  EXPECT_EQ(time.start[0], (std::vector<double>{0, 1.5, 2.5, 3.5, 3.5, 5, 7, 9, 9, 11}));
  EXPECT_NEAR(time.peak_live[0], 3 + 2, 1e-9);
  EXPECT_NEAR(alone("0.0F0,0.1F0,0.1B0,0.0B0\n", costs).peak_live[0], 3 + 2, 1e-9);
}

TEST(Table, JitterAndStragglers) {
  const Schedule schedule = make_schedule("zb-h1", {.actors = 4, .microbatches = 8});
  const StageShape shape = chain(4);
  const TableCosts costs = uniform_costs(4);
  const auto run = [&](const Disturbance& disturbance) {
    TableOptions options;
    options.disturbance = disturbance;
    return time_table(schedule, shape, costs, options);
  };
  EXPECT_EQ(run({.jitter = 0.3, .seed = 5}).start, run({.jitter = 0.3, .seed = 5}).start);
  EXPECT_NE(run({.jitter = 0.3, .seed = 5}).makespan, run({.jitter = 0.3, .seed = 6}).makespan);
  EXPECT_EQ(run({.slowdown = {2, 2, 2, 2}}).makespan, 54);
  EXPECT_EQ(run({.slowdown = {1, 1, 3, 1}}).busy, (std::vector<double>{24, 24, 72, 24}));
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const TableTime time = run({.jitter = 0.5, .seed = seed});
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t i = 0; i < time.start[a].size(); ++i) {
        const double factor = time.end[a][i] - time.start[a][i];
        ASSERT_TRUE(factor >= 0.5 - 1e-9 && factor < 1.5 + 1e-9) << factor;
        sum += factor;
      }
  }
  EXPECT_NEAR(sum / (100 * 4 * 24), 1, 0.01);
}

// A random case, in times that are multiples of 1/8 so that sums are exact.
struct Case {
  StageShape shape;
  Schedule schedule;
  TableCosts costs;
  TableOptions options;
};

Case random_case(Random& random, bool mediums) {
  Case c;
  c.shape = test::random_shape(random, {.no_backward = 0.2, .no_parameters = 0.2});
  const int actors = test::draw(random, 1, 4);
  c.schedule = test::random_schedule(random, c.shape, actors, test::draw(random, 1, 5),
                                     {.mixed_split = test::coin(random, 0.5), .foreign_weight = 0.2, .foreign_input = 0.2, .replica = 0.2});
  if (test::coin(random, 0.5)) c.schedule = test::with_extras(random, std::move(c.schedule), c.shape);
  c.costs.stages.resize(c.shape.predecessors.size());
  for (StageCosts& stage : c.costs.stages) {
    for (double& time : stage.time) time = test::draw(random, mediums ? 1 : 0, 24) / 8.0;
    stage.forward_bytes = test::draw(random, 0, 16);
    stage.backward_bytes = test::draw(random, 0, 16);
    stage.weight_bytes = test::draw(random, 0, 16);
    stage.live = test::draw(random, 0, 4) / 2.0;
    stage.kept = stage.live * test::draw(random, 0, 4) / 4.0;
    stage.parameters = test::draw(random, 0, 2) / 2.0;
  }
  for (std::int32_t from = 0; from < actors; ++from)
    for (std::int32_t to = 0; to < actors; ++to)
      c.options.network.between[{from, to}] = {.latency = test::draw(random, 0, 16) / 8.0,
                                               .bandwidth = static_cast<double>(2 << test::draw(random, 0, 2)),
                                               .medium = mediums ? test::draw(random, -1, 1) : -1};
  c.options.record = true;
  return c;
}

TableTime run(const Case& c) {
  return time_table(c.schedule, c.shape, c.costs, c.options);
}

// The rules, one eighth of a unit of time after the other.
class ByTheRules {
 public:
  explicit ByTheRules(const Case& c) : case_(c) {
    for (std::size_t a = 0; a < c.schedule.actors.size(); ++a) {
      end_.emplace_back(c.schedule.actors[a].size(), -1);
      finished_.emplace_back(c.schedule.actors[a].size(), false);
      for (std::size_t i = 0; i < end_[a].size(); ++i) all_.emplace_back(a, i);
    }
    start_ = end_;
  }

  // The start of each action, in eighths.
  const std::vector<std::vector<int>>& starts() {
    std::vector<std::size_t> next(start_.size(), 0);  // of each row: what has not been taken up
    for (int now = 0; std::any_of(all_.begin(), all_.end(), [&](const At& x) { return !finished_[x.first][x.second]; }); ++now) {
      for (bool progress = true; progress;) {
        progress = false;
        for (const At& x : all_) progress = finish(x, now) || progress;
        for (auto& [channel, queue] : queues_) {
          for (; !queue.empty() && free_[channel] <= now; queue.pop_front(), progress = true) {
            const Parcel& parcel = queue.front();
            const Link& link = case_.options.network.at(static_cast<std::int32_t>(parcel.from.first), static_cast<std::int32_t>(parcel.to));
            free_[channel] = now + eighths(parcel.bytes / link.bandwidth);
            arrival_[{parcel.from, parcel.to}] = free_[channel] + eighths(link.latency);
          }
        }
        for (std::size_t a = 0; a < start_.size(); ++a) progress = take_up(a, next[a], now) || progress;
        for (auto& [lane, queue] : lanes_) {
          for (; !queue.empty() && lane_free_[lane] <= now; queue.pop_front(), progress = true) {
            begin(queue.front(), now);
            lane_free_[lane] = end_of(queue.front());
          }
        }
      }
    }
    return start_;
  }

 private:
  using At = std::pair<std::size_t, std::size_t>;  // actor, place in its row
  struct Parcel {
    At from;
    std::size_t to;
    double bytes;
  };

  static int eighths(double time) { return static_cast<int>(std::lround(time * 8)); }
  const Action& of(At x) const { return case_.schedule.actors[x.first][x.second]; }
  bool feeds(int from, int to) const {
    const auto& before = case_.shape.predecessors[at(to)];
    return std::find(before.begin(), before.end(), from) != before.end();
  }

  int end_of(At x) const { return end_[x.first][x.second]; }
  void begin(At x, int now) {
    const Action& action = of(x);
    start_[x.first][x.second] = now;
    end_[x.first][x.second] = now + eighths(case_.costs.stages[at(action.stage)].time[at(static_cast<int>(action.kind))]);
  }

  bool finish(At x, int now) {
    if (finished_[x.first][x.second] || end_of(x) < 0 || end_of(x) > now) return false;
    enqueue(x);
    return finished_[x.first][x.second] = true;
  }

  // 0: compute, 1: host copies, 2: collectives.
  static int lane_of(Kind kind) {
    if (kind == Kind::OFFLOAD || kind == Kind::RELOAD) return 1;
    return kind == Kind::UNSHARD || kind == Kind::REDUCE_GRAD ? 2 : 0;
  }

  // An actor that computes nothing takes up what is next in its row: gives it to its lane, or computes it.
  bool take_up(std::size_t a, std::size_t& next, int now) {
    if (next == start_[a].size()) return false;
    for (std::size_t i = 0; i < next; ++i)
      if (lane_of(of({a, i}).kind) == 0 && !finished_[a][i]) return false;
    const At here{a, next};
    if (const int lane = lane_of(of(here).kind); lane > 0) {
      lanes_[{a, lane}].push_back(here);
    } else {
      if (!is_ready(here, now)) return false;
      begin(here, now);
    }
    ++next;
    return true;
  }

  // Whether `user` waits for what stands before it in its row on another lane.
  bool waits_for(const Action& maker, const Action& user) const {
    if (maker.stage != user.stage) return false;
    if (maker.kind == Kind::RELOAD) return maker.microbatch == user.microbatch && (user.kind == Kind::B || user.kind == Kind::I);
    return maker.kind == (user.kind == Kind::U ? Kind::REDUCE_GRAD : Kind::UNSHARD);
  }

  // The value that `user` reads of `maker`: whose it is, and how large; an unnamed value where it reads nothing.
  std::pair<int, double> read(const Action& maker, const Action& user) const {
    const bool backward = maker.kind == Kind::B || maker.kind == Kind::I, also = user.kind == Kind::B || user.kind == Kind::I;
    if (maker.microbatch != user.microbatch) return {-1, 0};
    if (maker.kind == Kind::F &&
        (user.kind == Kind::F ? feeds(maker.stage, user.stage) : user.kind == Kind::I && maker.stage == user.stage))
      return {maker.stage, case_.costs.stages[at(maker.stage)].forward_bytes};
    if (backward && also && feeds(user.stage, maker.stage)) return {user.stage, case_.costs.stages[at(user.stage)].backward_bytes};
    if (maker.kind == Kind::I && user.kind == Kind::W && maker.stage == user.stage)
      return {maker.stage, case_.costs.stages[at(maker.stage)].weight_bytes};
    return {-1, 0};
  }

  void enqueue(At from) {
    for (std::size_t to = 0; to < start_.size(); ++to) {
      std::map<std::pair<int, Kind>, double> values;  // a gradient for a stage and what its own W needs are two
      for (const At& user : all_) {
        const auto [value, bytes] = read(of(from), of(user));
        if (user.first == to && to != from.first && value >= 0) values[{value, of(user).kind == Kind::W ? Kind::W : of(from).kind}] = bytes;
      }
      if (values.empty()) continue;
      const double bytes =
          std::accumulate(values.begin(), values.end(), 0.0, [](double sum, const auto& value) { return sum + value.second; });
      const std::int32_t medium = case_.options.network.at(static_cast<std::int32_t>(from.first), static_cast<std::int32_t>(to)).medium;
      queues_[medium >= 0 ? concat(medium) : concat(from.first, "-", to)].push_back({from, to, bytes});
    }
  }

  bool is_ready(At user, int now) const {
    return std::all_of(all_.begin(), all_.end(), [&](const At& maker) {
      if (maker.first == user.first)
        return maker.second >= user.second || !waits_for(of(maker), of(user)) || finished_[maker.first][maker.second];
      if (read(of(maker), of(user)).first < 0) return true;
      const auto arrived = arrival_.find({maker, user.first});
      return arrived != arrival_.end() && arrived->second <= now;
    });
  }

  const Case& case_;
  std::vector<At> all_;
  std::vector<std::vector<int>> start_, end_;
  std::vector<std::vector<bool>> finished_;
  std::map<std::pair<std::size_t, int>, std::deque<At>> lanes_;  // of actors
  std::map<std::pair<std::size_t, int>, int> lane_free_;
  std::map<std::string, std::deque<Parcel>> queues_;
  std::map<std::string, int> free_;
  std::map<std::pair<At, std::size_t>, int> arrival_;
};

TEST(Table, IsWhatTheRulesSay) {
  for (std::uint64_t seed = 0; seed < test::rounds(600u); ++seed) {
    Random random(seed);
    const Case c = random_case(random, seed % 2 == 1);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(c.schedule));
    std::vector<std::vector<double>> expected;
    ByTheRules rules(c);
    for (const auto& row : rules.starts()) {
      expected.emplace_back();
      for (const int start : row) expected.back().push_back(start / 8.0);
    }
    ASSERT_EQ(run(c).start, expected);
  }
}

TEST(Table, IsNeverFasterThanItsBounds) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Case c = random_case(random, seed % 2 == 1);
    for (StageCosts& stage : c.costs.stages)
      for (double& time : stage.time) time *= 0.1;  // rounded
    c.options.disturbance = {.jitter = 0.2, .seed = seed};
    const TableTime time = run(c);
    EXPECT_LE(dependency_bound(c.schedule, c.shape, c.costs, c.options), time.makespan);
    EXPECT_LE(*std::max_element(time.busy.begin(), time.busy.end()), time.makespan);
  }
}

TEST(Table, MoreLatencyIsNeverFaster) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Case c = random_case(random, false);
    const TableTime before = run(c);
    for (auto& [pair, link] : c.options.network.between) {
      if (test::coin(random, 0.5)) link.latency += test::draw(random, 1, 16) / 8.0;
      if (test::coin(random, 0.2)) link.bandwidth /= 2;
    }
    const TableTime after = run(c);
    for (std::size_t a = 0; a < before.start.size(); ++a)
      for (std::size_t i = 0; i < before.start[a].size(); ++i) EXPECT_LE(before.start[a][i], after.start[a][i]);
  }
}

TEST(Table, TwiceTheCostsTakeTwiceTheTime) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Case c = random_case(random, seed % 2 == 1);
    for (StageCosts& stage : c.costs.stages)
      for (double& time : stage.time) time *= 0.1;
    const TableTime once = run(c);
    for (StageCosts& stage : c.costs.stages) {
      for (double& time : stage.time) time *= 2;
      stage.forward_bytes *= 2;
      stage.backward_bytes *= 2;
      stage.weight_bytes *= 2;
    }
    for (auto& [pair, link] : c.options.network.between) link.latency *= 2;
    const TableTime twice = run(c);
    for (std::size_t a = 0; a < once.end.size(); ++a)
      for (std::size_t i = 0; i < once.end[a].size(); ++i) EXPECT_EQ(2 * once.end[a][i], twice.end[a][i]);
  }
}

// A medium of its own for each link changes nothing but the order of the walk.
TEST(Table, TheOrderOfTheWalkDoesNotMatter) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Case c = random_case(random, false);
    const TableTime separate = run(c);
    std::int32_t medium = 0;
    for (auto& [pair, link] : c.options.network.between) link.medium = medium++;
    EXPECT_EQ(run(c).start, separate.start);
  }
}

// Whether an actor has the parameters of a stage: always if it computes with them and never gathers them.
bool holds_parameters(const std::vector<Action>& row, const std::vector<double>& start, const std::vector<double>& end, int stage,
                      double now) {
  bool computes = false, gathers = false, holds = false;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i].stage != stage) continue;
    computes = computes || row[i].kind == Kind::F || row[i].kind == Kind::B || row[i].kind == Kind::I;
    gathers = gathers || row[i].kind == Kind::UNSHARD;
    if (row[i].kind == Kind::UNSHARD && start[i] <= now) holds = true;
    if (row[i].kind == Kind::RESHARD && end[i] <= now) holds = false;
  }
  return gathers ? holds : computes;
}

// The memory that lives on an actor at a moment is counted forward by forward.
TEST(Table, PeaksAndMemoryCurves) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    Random random(seed);
    const Case c = random_case(random, false);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(c.schedule));
    const TableTime time = run(c);
    const Timeline timeline = timeline_of(c.schedule, c.shape, c.costs, time);
    const WorkIndex work = index_work(c.schedule, c.shape, c.schedule.microbatches());
    for (std::size_t a = 0; a < c.schedule.actors.size(); ++a) {
      const auto live_at = [&](double now) {
        double live = 0;
        for (std::size_t unit = 0; unit < work.forward.size(); ++unit) {
          const Position first = work.forward[unit], last = work.weight[unit] ? work.weight[unit] : work.backward[unit];
          if (first.actor != static_cast<std::int32_t>(a) || !last) continue;
          const auto started = [&](const std::vector<Position>& where) {
            return where.empty() || !where[unit] || time.start[a][at(where[unit].index)] <= now;
          };
          const bool away = !work.offload.empty() && work.offload[unit] && time.end[a][at(work.offload[unit].index)] <= now;
          const bool whole = started(work.recompute) && (!away || started(work.reload));
          const StageCosts& costs = c.costs.stages[at(work.at(first).stage)];
          if (time.start[a][at(first.index)] <= now && now < time.end[at(last.actor)][at(last.index)])
            live += whole ? costs.live : costs.kept;
        }
        for (std::size_t s = 0; s < c.costs.stages.size(); ++s)
          live +=
              holds_parameters(c.schedule.actors[a], time.start[a], time.end[a], static_cast<int>(s), now) * c.costs.stages[s].parameters;
        return live;
      };
      double peak = 0;
      ASSERT_EQ(timeline.memory[a].front().time, 0);
      for (std::size_t i = 0; i < timeline.memory[a].size(); ++i) {
        const MemoryPoint& point = timeline.memory[a][i];
        ASSERT_TRUE(i == 0 || timeline.memory[a][i - 1].time < point.time);
        EXPECT_NEAR(point.total(), live_at(point.time), 1e-9) << "actor " << a << " at " << point.time;
        peak = std::max(peak, point.total());
      }
      // Within one moment without length more can live than before and after it.
      EXPECT_GE(time.peak_live[a], peak - 1e-9);
    }
  }
}

TEST(Table, CausesExplainEveryBegin) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    Random random(seed);
    const Case c = random_case(random, seed % 2 == 1);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(c.schedule));
    const Timeline timeline = timeline_of(c.schedule, c.shape, c.costs, run(c));
    std::size_t actions = 0;
    for (std::size_t i = 0; i < timeline.activities.size(); ++i) {
      const Activity& activity = timeline.activities[i];
      const auto is_far = [](const Activity& x) { return x.lane == Lane::transfer && x.device != x.peer; };
      actions += !is_far(activity);
      EXPECT_TRUE(i == 0 || timeline.activities[i - 1].begin <= activity.begin);
      if (activity.cause < 0) {
        EXPECT_EQ(activity.begin, 0);
        continue;
      }
      ASSERT_LT(activity.cause, static_cast<std::int64_t>(i)) << "causes come first";
      const Activity& cause = timeline.activities[at(activity.cause)];
      // A transfer behind another follows when that one has left its link, a latency before it arrives.
      const bool behind = is_far(activity) && is_far(cause);
      EXPECT_EQ(activity.begin, cause.end - (behind ? c.options.network.at(cause.device, cause.peer).latency : 0));
      if (behind) continue;
      EXPECT_EQ(cause.lane == Lane::transfer ? cause.peer : cause.device, activity.device);
    }
    std::size_t all = 0;
    for (const auto& row : c.schedule.actors) all += row.size();
    EXPECT_EQ(actions, all);
  }
}

// A version is there until its last reader: of four in flight, the oldest was made before the others were.
TEST(Table, VersionsOfParametersLive) {
  const auto peaks = [](const char* name, int microbatches) {
    const Schedule schedule = make_schedule(name, {.actors = 4, .microbatches = microbatches, .window = 6});
    UnitCosts costs;
    costs.parameters = 10;
    return time_table(schedule, shape_of(schedule), uniform_costs(schedule.stages(), costs)).peak_live;
  };
  EXPECT_EQ(peaks("pipedream", 1), (std::vector<double>{44, 33, 22, 11}));
  EXPECT_EQ(peaks("pipedream-2bw", 4), (std::vector<double>{24, 23, 22, 21}));
}

}  // namespace
}  // namespace penstock
