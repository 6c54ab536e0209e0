// SPDX-License-Identifier: Apache-2.0
// List scheduling: its times are the table's, whatever the costs; where it cannot go on it says why.
#include "rules/load_schedule.h"

#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "support/errors.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;

std::string error_of(const std::string& text, const ScheduleOptions& options) {
  return message_of([&] { make_schedule(parse_rules("penstock rules 1\n" + text, "my.rules"), options); });
}

// Limits, phases and links only put off what is ready; all of it still runs, and never longer than one thing after the other.
TEST(RulesEngine, TablesAreValidUnderAnyCosts) {
  const char* texts[] = {"prefer B F",
                         "prefer F B limit p+2",
                         "prefer I F W limit 2*p",
                         "warm-up F drain B",
                         "placement loop 2 prefer F/B",
                         "placement wave 3 prefer I F W order F depth",
                         "placement bidirectional wave 2 limit each 2*v*p",
                         "placement stages 0 1 2 0 edges 0>2 1>2 2>3 prefer F/I W"};
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> time(0, 2);
  for (int round = 0; round < test::rounds(100); ++round) {
    const std::string text = texts[round % std::size(texts)];
    SCOPED_TRACE(concat("seed 7, round ", round, ": ", text));
    const Rules rules = parse_rules("penstock rules 1\n" + text, "random.rules");
    const ScheduleOptions options{.actors = 3 + round % 3, .microbatches = 1 + static_cast<int>(random() % 12)};
    const StageShape shape = shape_of(make_schedule(rules, options));
    TableCosts costs = uniform_costs(static_cast<std::int32_t>(shape.predecessors.size()));
    double longest = 0;
    for (StageCosts& stage : costs.stages) {
      for (double& cost : stage.time) cost = time(random);
      stage.forward_bytes = time(random);
      stage.backward_bytes = time(random);
      longest += stage.time[0] + stage.time[1] + stage.time[2] + stage.time[3] + 4;
    }
    const Network network{.link = {.latency = 0.5, .bandwidth = 2, .medium = round % 2 - 1}};
    const auto [schedule, makespan] = schedule_by(rules, options, costs, network);
    ASSERT_EQ(message_of([&] { validate(schedule, shape, options.microbatches); }), "no error") << print(schedule);
    EXPECT_NEAR(makespan, time_table(schedule, shape, costs, {.network = network}).makespan, 1e-9);
    EXPECT_LE(makespan, longest * options.microbatches);
    EXPECT_EQ(schedule_by(rules, options, costs, network).schedule.actors, schedule.actors);
  }
}

// The row of an actor that is alone.
std::string row_of(const std::string& text, const ScheduleOptions& options) {
  const Schedule schedule = make_schedule(parse_rules("penstock rules 1\n" + text, "x.rules"), options);
  return join(schedule.actors[0], " ", [](const Action& action) { return penstock::text(action); });
}

// A kind that waits for its phase waits, also where it could run.
TEST(RulesEngine, PhasesAndTurns) {
  const ScheduleOptions alone{.actors = 1, .microbatches = 3};
  EXPECT_EQ(row_of("prefer B F", alone), "0F0 0B0 0F1 0B1 0F2 0B2");
  EXPECT_EQ(row_of("warm-up F drain B", alone), "0F0 0F1 0F2 0B0 0B1 0B2");
  EXPECT_EQ(row_of("prefer I F drain I W", alone), "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2");
  EXPECT_EQ(row_of("prefer F/I W", alone), "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2");
  EXPECT_EQ(row_of("prefer F I W limit 2", alone), "0F0 0F1 0I0 0I1 0W0 0F2 0I2 0W1 0W2");
  EXPECT_EQ(row_of("prefer F I W limit 1 until I", alone), "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2");
}

TEST(RulesEngine, Slices) {
  const Rules rules = parse_rules("penstock rules 1\nplacement loop edges 0>2 1>2 2>3", "x.rules");
  const ScheduleOptions whole{.actors = 2, .microbatches = 3, .chunks = 2}, cut{.actors = 2, .microbatches = 3, .chunks = 2, .slices = 3};
  const Schedule table = make_schedule(rules, cut);
  EXPECT_EQ(print(table), print(sliced(make_schedule(rules, whole), 3)));
  EXPECT_EQ(shape_of(table).predecessors, sliced(shape_of(make_schedule(rules, whole)), 3).predecessors);
  EXPECT_EQ(message_of([&] { validate(table, shape_of(table), 3); }), "no error");
  EXPECT_EQ(message_of([&] { schedule_by(rules, cut, uniform_costs(12)); }),
            "x.rules: rules that follow given costs take no --slices\n  hint: leave out --slices");
  EXPECT_EQ(error_of("", {.slices = 0}), "my.rules: --slices must be at least 1, not 0");
}

// As by name, a window is the table of a step, once for each, with its updates.
TEST(RulesEngine, Windows) {
  const Rules rules = parse_rules("penstock rules 1\nprefer F I W limit p-r until I limit p", "x.rules");
  for (const int slices : {1, 2}) {
    const ScheduleOptions options{.actors = 3, .microbatches = 4, .window = 3, .slices = slices};
    EXPECT_EQ(print(make_schedule(rules, options)), print(make_schedule("zb-h1", options)));
    EXPECT_EQ(make_schedule(rules, options).steps, 3);
  }
  EXPECT_EQ(message_of([&] { schedule_by(rules, {.window = 2}, uniform_costs(2)); }),
            "x.rules: rules that follow given costs take no --window\n  hint: leave out --window");
  EXPECT_EQ(error_of("", {.window = 0}), "my.rules: --window must be at least 1, not 0");
  EXPECT_EQ(error_of("", {.head_shards = 2}), "no error");  // stages that the placement and the edges of the rules have
  EXPECT_EQ(error_of("", {.frozen = {1}}), "my.rules: rules take no --frozen\n  hint: write it as a limit, an order or a preference");
}

TEST(RulesEngine, Orders) {
  const ScheduleOptions alone{.actors = 1, .microbatches = 2, .chunks = 2};
  EXPECT_EQ(row_of("placement loop prefer F B order F breadth order B breadth", alone), "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1");
  EXPECT_EQ(row_of("placement loop prefer F B order F depth order B depth", alone), "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1");
  EXPECT_EQ(row_of("placement loop 3 prefer F B", {.actors = 1, .microbatches = 1}), "0F0 1F0 2F0 2B0 1B0 0B0");
  EXPECT_EQ(row_of("placement loop prefer F B order F groups 2 limit 3", alone), "0F0 0F1 1F0 1B0 1F1 0B0 1B1 0B1");
}

TEST(RulesEngine, ForwardOnly) {
  const Rules rules = parse_rules("penstock rules 1 placement wave 2 limit 1", "x.rules");
  const ScheduleOptions options{.actors = 2, .microbatches = 3, .forward_only = true};
  const Schedule schedule = make_schedule(rules, options);
  EXPECT_EQ(message_of([&] { validate(schedule, chain(4, true), 3); }), "no error");
}

TEST(RulesEngine, BranchesRunBesideEachOther) {
  const Rules rules = parse_rules("penstock rules 1 placement stages 0 1 2 edges 0>2 1>2 prefer B F", "branches.rules");
  const ScheduleOptions options{.actors = 3, .microbatches = 1};
  const Schedule schedule = make_schedule(rules, options);
  EXPECT_EQ(time_table(schedule, shape_of(schedule), uniform_costs(3)).makespan, 6);  // a chain's is 9
}

TEST(RulesEngine, SaysWhoWaitsForWhat) {
  EXPECT_EQ(error_of("placement wave 2 limit 1", {.actors = 2, .microbatches = 2}),
            "my.rules: nothing may run any more\n"
            "  actor 0: 0F1 waits: 1 in flight, and \"limit 1\" allows 1\n"
            "  actor 1: 2F0 waits: 1 in flight, and \"limit 1\" allows 1\n"
            "  hint: raise the limit, let the kind run in that phase, or order F so that micro-batches reach their backward");
  EXPECT_NE(error_of("limit r", {.actors = 2}).find("actor 0: 0F0 waits: 0 in flight, and \"limit r\" allows 0"), std::string::npos);
  EXPECT_NE(error_of("prefer F", {.actors = 1, .microbatches = 1}).find("actor 0: 0B0 waits: drain does not let B run"), std::string::npos);
}

TEST(RulesEngine, OptionsThatDoNotFit) {
  EXPECT_EQ(error_of("", {.actors = 0}), "my.rules: --actors must be at least 1, not 0");
  EXPECT_EQ(error_of("", {.microbatches = 0}), "my.rules: --microbatches must be at least 1, not 0");
  EXPECT_EQ(error_of("", {.group = 2}), "my.rules: rules take no --group\n  hint: write it as a limit, an order or a preference");
  EXPECT_EQ(error_of("placement chain", {.chunks = 2}),
            "my.rules: stages per actor are 1 by the placement, 2 by --chunks\n"
            "  hint: write `placement loop` or `placement wave` without a number");
  EXPECT_EQ(error_of("placement stages 0 2", {}), "my.rules: the placement names actor 2 of 2\n  hint: --actors 3");
  EXPECT_EQ(error_of("edges 0>4", {}), "my.rules: edge 0>4 names stage 4 of 2");
  EXPECT_EQ(error_of("order F groups p-r-1", {}), "my.rules: groups of p-r-1 are 0 on actor 1");
  EXPECT_EQ(error_of("limit p/r", {}), "my.rules:2:7: p/r divides by zero\n  where p = 2, m = 4, v = 1, n = 1, r = 0, s = 0");
  EXPECT_NE(error_of("placement loop", {.actors = 100000, .microbatches = 100000}).find("is too large"), std::string::npos);
}

}  // namespace
}  // namespace penstock
