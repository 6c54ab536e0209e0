// SPDX-License-Identifier: Apache-2.0
// Tables for a window of training steps: what they say, hold and cost, and what is refused.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "schedule/versions.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;

Schedule table_of(const char* name, int actors, int microbatches, int window) {
  Schedule table = make_schedule(name, {.actors = actors, .microbatches = microbatches, .window = window});
  validate(table, chain(actors), microbatches * window);
  return table;
}

double time_of(const Schedule& table) {
  return time_table(table, shape_of(table), uniform_costs(table.stages())).makespan;
}

struct Held {
  std::vector<std::int32_t> versions, staleness;
  bool operator==(const Held&) const = default;
};
Held held(const Schedule& table) {
  Held out;
  for (std::int32_t actor = 0; actor < std::ssize(table.actors); ++actor) {
    out.versions.push_back(versions_held(table, actor));
    out.staleness.push_back(staleness(table, actor));
  }
  return out;
}

// Forward 1, backward 2: 3 (K + p - 1), never drained before the window ends; actor i has p - i versions, and is p-1-i updates late.
TEST(Windows, PipeDreamAsItIsPublished) {
  EXPECT_EQ(time_of(table_of("pipedream", 4, 1, 8)), 33);
  EXPECT_EQ(time_of(table_of("pipedream", 4, 1, 40)), 129);
  EXPECT_EQ(time_of(table_of("pipedream", 4, 1, 60)), 189);
  EXPECT_EQ(time_of(table_of("pipedream", 8, 1, 32)), 117);
  EXPECT_EQ(time_of(table_of("pipedream", 2, 1, 8)), 27);
  const Schedule table = table_of("pipedream", 4, 1, 8);
  EXPECT_EQ(held(table), (Held{{4, 3, 2, 1}, {3, 2, 1, 0}}));
  EXPECT_EQ(time_table(table, chain(4), uniform_costs(4)).peak_live, (std::vector<double>{4, 3, 2, 1}));
}

TEST(Windows, PipeDream2BWAsItIsPublished) {
  EXPECT_EQ(time_of(table_of("pipedream-2bw", 4, 4, 4)), 57);
  EXPECT_EQ(time_of(table_of("pipedream-2bw", 4, 8, 3)), 81);
  EXPECT_EQ(time_of(table_of("pipedream-2bw", 4, 3, 4)), 45);
  EXPECT_EQ(time_of(table_of("pipedream-2bw", 2, 4, 8)), 99);
  EXPECT_EQ(held(table_of("pipedream-2bw", 4, 4, 4)), (Held{{2, 2, 2, 2}, {1, 1, 1, 1}}));
}

// With the newest parameters in place of the last but one, batches read several versions, but on the last actor.
TEST(Windows, TheNewestIsNot2BW) {
  Schedule table = table_of("pipedream-2bw", 4, 4, 4);
  for (auto& row : table.actors)
    for (Action& action : row) action.version = -1;
  const auto versions = read_versions(table);
  std::vector<int> mixed;
  for (std::size_t a = 0; a < 4; ++a) {
    std::set<std::pair<int, int>> read;
    for (std::size_t i = 0; i < table.actors[a].size(); ++i)
      if (table.actors[a][i].kind == Kind::F) read.emplace(table.actors[a][i].microbatch / 4, versions[a][i].version);
    mixed.push_back(static_cast<int>(read.size()) - 4);
  }
  EXPECT_EQ(mixed, (std::vector<int>{3, 3, 3, 0}));
}

// How many updates F and B of a step in the middle are predicted ahead, on each actor.
std::pair<std::vector<int>, std::vector<int>> predicted(const char* name, int actors, int microbatches) {
  const Schedule table = table_of(name, actors, microbatches, 8);
  std::pair<std::vector<int>, std::vector<int>> out;
  for (const auto& row : table.actors)
    for (const Action& action : row)
      if (action.microbatch == 5 * microbatches && action.kind != Kind::U)
        (action.kind == Kind::F ? out.first : out.second).push_back(action.ahead);
  return out;
}

TEST(Windows, XPipePredictsToOneTime) {
  using Ahead = std::pair<std::vector<int>, std::vector<int>>;
  EXPECT_EQ(predicted("xpipe", 4, 1), (Ahead{{3, 2, 2, 1}, {0, 0, 1, 1}}));
  EXPECT_EQ(predicted("xpipe", 4, 2), (Ahead{{2, 1, 2, 1}, {0, 0, 1, 1}}));
  EXPECT_EQ(predicted("xpipe", 4, 4), (Ahead{{1, 1, 2, 1}, {0, 0, 1, 1}}));
  EXPECT_EQ(predicted("xpipe", 2, 1), (Ahead{{1, 0}, {0, 0}}));
  EXPECT_EQ(predicted("xpipe", 8, 4), (Ahead{{2, 2, 3, 2, 2, 2, 2, 1}, {0, 0, 1, 1, 1, 1, 1, 1}}));
  EXPECT_EQ(predicted("pipeoptim", 4, 1), (Ahead{{3, 2, 1, 0}, {0, 0, 0, 0}}));
  EXPECT_EQ(predicted("pipeoptim", 4, 4), (Ahead{{1, 1, 1, 0}, {0, 0, 0, 0}}));
  EXPECT_EQ(held(table_of("xpipe", 4, 1, 8)).versions, (std::vector<std::int32_t>{2, 2, 3, 2}));  // two predictions at once on actor 2
}

// The time of a step in a long window where F, I and W of stage i take times[i].
double time_of_step(const std::vector<double>& times, const std::vector<double>& balance) {
  const auto time_of = [&](int window) {
    const int actors = static_cast<int>(times.size());
    const Schedule table =
        make_schedule("layerpipe", {.actors = actors, .microbatches = 1, .window = window, .balance = balance, .split_backward = true});
    validate(table, chain(actors), window);
    TableCosts costs = uniform_costs(actors);
    for (int stage = 0; stage < actors; ++stage)
      for (double& time : costs.stages[stage].time) time *= times[stage];
    return time_table(table, chain(actors), costs).makespan;
  };
  return (time_of(120) - time_of(60)) / 60;
}

// Whole stages take the largest one's time, balanced ones the mean.
TEST(Windows, LayerPipeBalances) {
  EXPECT_NEAR(time_of_step({4, 2, 1, 1}, {}), 12, 0.1);
  EXPECT_NEAR(time_of_step({4, 2, 1, 1}, {4, 2, 1, 1}), 6, 0.1);
  EXPECT_NEAR(time_of_step({4, 1, 1}, {4, 1, 1}), 6, 0.1);
  EXPECT_NEAR(time_of_step({3, 2, 3, 4}, {}), 12, 0.1);
  EXPECT_NEAR(time_of_step({3, 2, 3, 4}, {3, 2, 3, 4}), 9, 0.1);
  EXPECT_NEAR(time_of_step({1, 1, 1}, {1, 1, 1}), 3, 1e-9);
  for (int seed = 0; seed < test::rounds(100); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    std::vector<double> times(test::draw(random, 1, 6));
    for (double& time : times) time = test::draw(random, 1, 8);
    EXPECT_LE(time_of_step(times, times), time_of_step(times, {}) * 1.02);
  }
}

TEST(Windows, AreTablesLikeAnyOther) {
  const Schedule table = table_of("pipedream-2bw", 2, 2, 3);
  EXPECT_EQ(print(table),
            "0@0F0,0@0F1,0B0,0@0F2,0B1,0U1,0@0F3,0B2,0@1F4,0B3,0U3,0@1F5,0B4,0B5,0U5\n"
            "1@0F0,1B0,1@0F1,1B1,1U1,1@0F2,1B2,1@0F3,1B3,1U3,1@1F4,1B4,1@1F5,1B5,1U5\n");
  const Schedule read = parse_schedule(print(table), "t.csv");
  EXPECT_EQ(read.steps, 3);
  EXPECT_EQ(read.actors, table.actors);
  EXPECT_EQ(print(one_step(table, 1)), "0F0,0F1,0B0,0B1,0U\n1F0,1B0,1F1,1B1,1U\n");
  const Schedule slices = sliced(table_of("pipedream", 2, 1, 2), 2);
  EXPECT_EQ(print(slices),
            "0.0F0,0.1F0,0.0F1,0.1F1,0.1B0,0.0B0,0U0,0.1B1,0.0B1,0U1\n1.0F0,1.1F0,1.1B0,1.0B0,1U0,1.0F1,1.1F1,1.1B1,1.0B1,1U1\n");
  validate(slices, sliced(chain(2), 2), 2);
  const Schedule split = make_schedule("pipedream", {.actors = 2, .microbatches = 1, .window = 2, .split_backward = true});
  EXPECT_EQ(print(split), "0F0,0F1,0I0,0W0,0U0,0I1,0W1,0U1\n1F0,1I0,1W0,1U0,1F1,1I1,1W1,1U1\n");
  validate(split, chain(2));
}

std::string refused(const std::string& csv) {
  return message_of([&] {
    const Schedule table = parse_schedule(csv, "t.csv");
    validate(table, chain(table.whole_stages()));
  });
}

TEST(WindowsFailure, SayWhatIsWrongAndWhere) {
  EXPECT_EQ(refused("0F0,0@1F1,0B0,0U0,0B1,0U1\n"),
            "t.csv:1:2: 0@1F1 reads version 1 of stage 0, which is not made yet\n"
            "  0 updates of the stage stand before it in the row of actor 0\n"
            "  hint: move it behind 0U0, or let it read version 0");
  EXPECT_EQ(refused("0F0,0F1,0B0,0U0,0U1,0B1\n"),
            "t.csv:1:6: 0B1: its gradient is lost\n  the update of its step, 0U1, stands before it\n  hint: move it before that update");
  EXPECT_EQ(refused("0F0,0B0,0U0,0F1,0B1,0U1\n1F0,1B0,1U0,1F1,1B1\n"),
            "t.csv:2:5: 1B1: behind it step 1 has no update of stage 1\n  the table is for 2 steps\n  hint: add 1U1");
  EXPECT_EQ(refused("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3,0U3,0U1\n"),
            "t.csv:1:9: 0U3 closes no step, or not the next\n  a step has 2 micro-batches; 0 of stage 0's updates stand before it\n"
            "  hint: the next is 0U1");
  EXPECT_EQ(
      refused("0F0,0F1,0B0,0U0,0B1,0U1,0U1\n"),
      "t.csv:1:7: 0U1 is one U too many\n  2 updates of stage 0 stand before it, one for each step of the window\n  hint: leave it out");
  EXPECT_EQ(refused("0F0,0F1,0B0,0U,0U0,0B1,0U1\n"),
            "t.csv:1:4: 0U names no step\n  the table is for 2 steps\n  hint: name the last micro-batch of the step that it closes: 0U0");
  EXPECT_EQ(refused("0UNSHARD,0F0,0F1,0B0,0U0,0B1,0REDUCE_GRAD,0U1\n"),
            "t.csv:1:1: 0UNSHARD is of no step\n  the table is for 2 steps, each of which gathers and reduces as pipeline.zero says\n"
            "  hint: leave it out, or make the table for one step");
  EXPECT_EQ(refused("0x2F0,0B0,0U0,0B1,0U1\n"),
            "t.csv:1:1: 0x2F0 is of two steps\n  a step has 1 micro-batch\n  hint: write it once for each");
  EXPECT_EQ(refused("0F0,0F1,0F2,0B0,0U0,0B1,0U1,0B2\n"),
            "t.csv: 3 micro-batches are no multiple of the 2 steps of the table\n  its U name so many last micro-batches of steps\n"
            "  hint: let each step have as many");
  EXPECT_EQ(refused("0F0,0F1,0I0,0I1\n0W0,0U0,0W1,0U1\n"),
            "t.csv:2:2: 0U0: stage 0 is also on actor 0\n"
            "  in a window of steps only I and W may be on an actor without a forward of the stage\n"
            "  hint: put all of a stage but its I and W where its forwards are, or make the table for one step");
  EXPECT_EQ(refused("0F0,0F1,0I0,0U0,0I1,0U1\n0W0,0@1W1\n"),
            "t.csv:2:2: 0@1W1 reads version 1 of stage 0, its forward version 0\n"
            "  an I or W on another actor than its forward reads what that read\n  hint: leave out the version");
  EXPECT_EQ(refused("0F0,0U0,0I0,0F1,0I1,0U1\n0W0,0W1\n"),
            "t.csv:1:2: 0U0 can never run (actor 0)\n"
            "  cycle: 0U0 needs 0W0; 0W0 needs 0I0; actor 0 runs 0I0 after 0U0\n  hint: move 0I0 (column 3) before column 2");
  EXPECT_EQ(refused("0F0,0I0,0U0,0F1,0I1,0U1\n0W1,0W0\n"),
            "t.csv:1:3: 0U0 can never run (actor 0)\n"
            "  cycle: 0U0 needs 0W0; actor 1 runs 0W0 after 0W1; 0W1 needs 0I1; actor 0 runs 0I1 after 0U0\n"
            "  hint: move 0I1 (column 5) before column 3, or 0W1 after 0W0");
  EXPECT_EQ(refused("0@1F0,0B0,0U\n").substr(0, 66), "t.csv:1:1: 0@1F0 reads version 1 of stage 0, which is not made yet");
  EXPECT_NE(refused("0@F0,0B0\n").find("a version's number is missing after '@'"), std::string::npos);
  EXPECT_NE(refused("0@0+F0,0B0\n").find("by how many updates it is predicted is missing after '+'"), std::string::npos);
  EXPECT_NE(refused("0F0,0B0,0@1U\n").find("U reads no version of the parameters"), std::string::npos);
}

TEST(WindowsFailure, TooFewMicrobatches) {
  EXPECT_EQ(message_of([] { make_schedule("pipedream-2bw", {.actors = 4, .microbatches = 2, .window = 6}); }),
            "pipedream-2bw: 2 micro-batches a step are too few for 4 actors\n  actor 0 would begin a step before the update that it reads\n"
            "  hint: use at least 3 micro-batches, or pipedream, which reads what is there");
  EXPECT_EQ(message_of([] { make_schedule("1f1b", {.actors = 2, .microbatches = 2, .window = 5000}); }),
            "1f1b: --window must be at most 4096, not 5000");
}

// Whatever is broken is refused, with its row and cell.
TEST(WindowsFailure, RandomTablesThatAreBroken) {
  const int tables = test::rounds(1000);
  std::map<std::string, int> kinds;
  for (int seed = 0; seed < tables; ++seed) {
    test::Random random(seed);
    const StageShape shape = chain(test::draw(random, 1, 5));
    const Schedule table = test::random_window(random, shape, test::draw(random, 1, 3), test::draw(random, 1, 3), test::draw(random, 2, 5));
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    ASSERT_NO_THROW(validate(table, shape));
    ASSERT_EQ(print(parse_schedule(print(table), "t.csv")), print(table));
    const test::BrokenTable broken = test::break_window(random, table);
    const std::string message = message_of([&] { validate(parse_schedule(broken.csv, "t.csv"), shape); });
    ASSERT_NE(message.find(broken.expected), std::string::npos) << broken.kind << "\n" << broken.csv << message;
    ASSERT_TRUE(message.starts_with("t.csv:")) << broken.kind << "\n" << broken.csv << message;
    ++kinds[broken.kind];
  }
  EXPECT_EQ(kinds.size(), 5u);
}

}  // namespace
}  // namespace penstock
