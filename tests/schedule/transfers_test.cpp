// SPDX-License-Identifier: Apache-2.0
// Tables that say where transfers start: kept by their text, refused where they cannot be, timed as their rows say.
#include "schedule/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "schedule/in_one_row.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::draw;
using test::message_of;
using test::Random;

// 1f1b of two stages and two micro-batches, as torch writes it with its communication.
const std::string kTable =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";

std::string verdict(const std::string& csv, const StageShape& shape = chain(2)) {
  return message_of([&] { validate(parse_schedule(csv, "plan.csv"), shape); });
}

// The table with `from` replaced by `to`, once.
std::string replaced(std::string table, const std::string& from, const std::string& to) {
  return table.replace(table.find(from), from.size(), to);
}

TEST(Transfers, AreKeptByTheText) {
  const Schedule schedule = parse_schedule(kTable, "plan.csv");
  EXPECT_EQ(print(schedule), kTable);
  EXPECT_EQ(verdict(kTable), "no error");
  EXPECT_EQ(schedule.actors[1][0], (Action{1, Kind::RECV_F, 0}));
  EXPECT_EQ(print(without_transfers(schedule)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(print(in_one_row(schedule, chain(2))).find("SEND"), std::string::npos);
}

// Behind an update of the stage its gradient may still be sent.
TEST(Transfers, UpdatesComeBehindThem) {
  EXPECT_EQ(print(with_updates(parse_schedule("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "plan.csv"))),
            "0F0,0SEND_F0,0RECV_B0,0B0,0U\n1RECV_F0,1F0,1B0,1SEND_B0,1U\n");
}

TEST(Transfers, AreRefusedOutOfPlace) {
  EXPECT_EQ(verdict(replaced(kTable, "0F1,0SEND_F1", "0SEND_F1,0F1")),
            "plan.csv:1:3: 0SEND_F1 sends what is not there yet\n"
            "  0F1 stands at plan.csv:1:4\n"
            "  hint: move it behind 0F1");
  EXPECT_EQ(verdict(replaced(kTable, "1RECV_F0,1F0", "1F0,1RECV_F0")),
            "plan.csv:2:2: 1RECV_F0 receives what was needed before\n"
            "  1F0 stands at plan.csv:2:1\n"
            "  hint: move it ahead of 1F0");
  EXPECT_EQ(verdict(replaced(kTable, ",0SEND_F1", "")),
            "plan.csv:1:3: 0F1 makes what actor 1 needs, and 0SEND_F1 is missing\n"
            "  a table has the sends and receives of all its transfers, or none\n"
            "  hint: add it behind 0F1, or leave all of them out");
  EXPECT_EQ(verdict(replaced(kTable, "0RECV_B0,", "")),
            "plan.csv:1:5: 0B0 needs what actor 1 makes, and 0RECV_B0 is missing\n"
            "  a table has the sends and receives of all its transfers, or none\n"
            "  hint: add it ahead of 0B0, or leave all of them out");
  EXPECT_EQ(verdict(replaced(kTable, "0SEND_F1", "0SEND_F1,0SEND_F1")).find("plan.csv:1:5: 0SEND_F1 stands twice"), 0u);
  EXPECT_EQ(verdict(replaced(kTable, "0B0", "0B0,0SEND_B0")),
            "plan.csv:1:7: 0SEND_B0 sends what no other actor needs\n"
            "  actor 0 alone has what needs it\n"
            "  hint: leave it out");
  EXPECT_EQ(verdict("0RECV_F0," + kTable),
            "plan.csv:1:1: 0RECV_F0 receives nothing\n"
            "  actor 0 makes all that is needed itself\n"
            "  hint: leave it out");
  EXPECT_EQ(verdict(replaced(kTable, "1F0,", "1F0,0SEND_F1,").replace(kTable.find("0SEND_F1,"), 9, "")),
            "plan.csv:2:3: 0SEND_F1 is on actor 1, 0F1 on actor 0\n"
            "  0F1 stands at plan.csv:1:3\n"
            "  hint: move it to row 1");
  EXPECT_EQ(verdict("0F0,0SEND_F0,0SEND_B0\n1RECV_F0,1F0\n", chain(2, true)),
            "plan.csv:1:3: 0SEND_B0 sends what nothing makes\n"
            "  SEND_F and RECV_F are of a stage's F, SEND_B and RECV_B of its B or I\n"
            "  hint: leave it out");
}

// Over one queue for each pair both actors would wait.
TEST(Transfers, AreRefusedInTwoOrders) {
  EXPECT_EQ(verdict(replaced(kTable, "1RECV_F1,1B0,1SEND_B0", "1B0,1SEND_B0,1RECV_F1")),
            "plan.csv:1:4: 0SEND_F1: actors 0 and 1 start their transfers in two orders\n"
            "  at the same turn actor 1 has 1SEND_B0, at plan.csv:2:4\n"
            "  both ends start a pair's transfers, of both directions, in one order: over one queue each would wait for the other\n"
            "  hint: move 1RECV_F1 ahead of 1SEND_B0 in row 2, or 0SEND_F1 behind 0RECV_B0 in row 1");
}

// Each forward could run, but each actor sends its own behind that for which it waits.
TEST(Transfers, AreRefusedInACircle) {
  const std::string rows = "0F0,1RECV_F2,1F2,0SEND_F0\n0F1,1RECV_F0,1F0,0SEND_F1\n0F2,1RECV_F1,1F1,0SEND_F2\n";
  EXPECT_EQ(verdict(rows, chain(2, true)),
            "plan.csv:1:3: 1F2 can never run (actor 0)\n"
            "  cycle: 1F2 needs 0SEND_F2; actor 2 runs 0SEND_F2 after 1F1; 1F1 needs 0SEND_F1; actor 1 runs 0SEND_F1 after 1F0; "
            "1F0 needs 0SEND_F0; actor 0 runs 0SEND_F0 after 1F2\n"
            "  hint: move 0SEND_F0 (column 4) before column 3, or 1F1 after 0SEND_F2");
  EXPECT_EQ(verdict("0F0,0SEND_F0,1RECV_F2,1F2\n0F1,1RECV_F0,1F0,0SEND_F1\n0F2,1RECV_F1,1F1,0SEND_F2\n", chain(2, true)), "no error");
}

TEST(Transfers, AreOfOneStepAndOneMicroBatch) {
  EXPECT_NE(verdict("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0U0,0RECV_B1,0B1,0U1\n"
                    "1RECV_F0,1F0,1RECV_F1,1B0,1U0,1SEND_B0,1F1,1B1,1U1,1SEND_B1\n")
                .find("plan.csv: a table for 2 steps has sends and receives"),
            std::string::npos);
  EXPECT_EQ(verdict("0x2F0,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n" + kTable.substr(kTable.find('\n') + 1)),
            "plan.csv:1:1: 0x2F0 has transfers that no send names\n"
            "  in a table with sends and receives each action is of one micro-batch, and a W is where its I is\n"
            "  hint: leave out all sends and receives, or change it");
}

// Each F and B takes 1, a transfer of a byte 2 on its link.
TableTime time_of(const std::string& csv, double latency = 0) {
  const Schedule schedule = parse_schedule(csv, "plan.csv");
  const StageShape shape = shape_of(schedule);
  validate(schedule, shape);
  const TableCosts costs = uniform_costs(schedule.stages(), {.forward = 1, .backward = 1, .bytes = 1});
  return time_table(schedule, shape, costs, {.network = {.link = {latency, 0.5}}, .disturbance = {}, .record = true});
}

TEST(Transfers, StartWhereBothEndsCome) {
  // 0F0 ends at 1, its transfer at 3. Where it is sent behind 0F1, it ends at 4, and 0F1's, behind it on the link, at 6.
  EXPECT_EQ(time_of("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n").start[1], (std::vector<double>{0, 0, 3, 5}));
  EXPECT_EQ(time_of("0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n").start[1], (std::vector<double>{0, 0, 4, 6}));
  // The second receive is posted behind 1F0, at 4: its transfer takes from 4 to 6, and arrives a latency later.
  EXPECT_EQ(time_of("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n").start[1], (std::vector<double>{0, 3, 4, 6}));
  EXPECT_EQ(time_of("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n", 0.5).start[1], (std::vector<double>{0, 3.5, 4.5, 7}));
  // What is sent first leaves first: F1 before F0.
  EXPECT_EQ(time_of("0F0,0F1,0SEND_F1,0SEND_F0\n1RECV_F1,1RECV_F0,1F1,1F0\n").start[1], (std::vector<double>{0, 0, 4, 6}));
}

TEST(Transfers, AreDrawnAsTransfersOfWhatTheyCarry) {
  const std::string csv = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
  const Schedule schedule = parse_schedule(csv, "plan.csv");
  const TableCosts costs = uniform_costs(2, {.forward = 1, .backward = 1, .bytes = 1});
  const Timeline timeline = timeline_of(schedule, chain(2, true), costs, time_of(csv));
  std::vector<std::string> drawn;
  for (const Activity& a : timeline.activities)
    drawn.push_back(concat(a.stage, name(a.kind), a.microbatch, a.lane == Lane::transfer ? " sent" : "", " ", a.begin, " ", a.end));
  std::ranges::sort(drawn);
  EXPECT_EQ(drawn, (std::vector<std::string>{"0F0 0 1", "0F0 sent 1 3", "0F1 1 2", "0F1 sent 4 6", "1F0 3 4", "1F1 6 7"}));
}

// A chain's table of drawn rows, costs and links.
struct Case {
  StageShape shape;
  Schedule schedule;
  TableCosts costs;
  TableOptions options{.network = {}, .disturbance = {}, .record = true};
};

Case random_case(Random& random) {
  Case c;
  const int stages = draw(random, 2, 5), actors = draw(random, 2, 4);
  c.shape = chain(stages);
  c.schedule = test::random_schedule(random, c.shape, actors, draw(random, 1, 4), {.mixed_split = test::coin(random, 0.5), .replica = 0.2});
  c.costs = uniform_costs(stages);
  for (StageCosts& stage : c.costs.stages) {
    for (const Kind kind : {Kind::F, Kind::B, Kind::I, Kind::W}) stage.of(kind) = draw(random, 1, 4);
    stage.forward_bytes = draw(random, 1, 4);
    stage.backward_bytes = draw(random, 1, 4);
  }
  for (int from = 0; from < actors; ++from)
    for (int to = 0; to < actors; ++to)
      c.options.network.between[{from, to}] = {.latency = 1.0 * draw(random, 0, 2), .bandwidth = 1.0 * draw(random, 1, 3)};
  return c;
}

// When each action starts, by going over the rows again and again: an action when that before it in its row has ended and what it needs of
// others has arrived; a transfer when its send and its receive have started and the link's one before it has left.
std::vector<std::vector<double>> starts_by_repetition(const Case& c, const Schedule& schedule) {
  const WorkIndex work = index_work(schedule, c.shape, schedule.microbatches());
  const std::vector<Parcel> parcels = parcels_of(work);
  std::vector<std::vector<double>> start, end;
  for (const auto& row : schedule.actors) start.emplace_back(row.size(), 0.0), end.emplace_back(row.size(), 0.0);
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::pair<std::int32_t, std::int32_t>, double> free;
    std::map<std::pair<std::int32_t, std::int32_t>, double> arrived;  // at the receive
    for (const Parcel& parcel : parcels) {
      const Action& send = work.at(parcel.send);
      const StageCosts& costs = c.costs.of(send.stage, send.microbatch);
      const double bytes = send.kind == Kind::SEND_F ? costs.forward_bytes : c.costs.of(send.stage - 1, send.microbatch).backward_bytes;
      const Link& link = c.options.network.at(parcel.send.actor, parcel.to);
      double& left = free[{parcel.send.actor, parcel.to}];
      left = std::max({left, start[at(parcel.send.actor)][at(parcel.send.index)], start[at(parcel.to)][at(parcel.receive.index)]}) +
             bytes / link.bandwidth;
      const Position user = work.user_of(work.at(parcel.receive));
      arrived[{user.actor, user.index}] = left + link.latency;
    }
    for (std::int32_t a = 0; a < std::ssize(schedule.actors); ++a)
      for (std::int32_t i = 0; i < std::ssize(schedule.actors[at(a)]); ++i) {
        const Action& action = work.at({a, i});
        double when = i > 0 ? end[at(a)][at(i - 1)] : 0;
        if (const auto found = arrived.find({a, i}); found != arrived.end()) when = std::max(when, found->second);
        changed = changed || when != start[at(a)][at(i)];
        start[at(a)][at(i)] = when;
        end[at(a)][at(i)] = when + c.costs.of(action.stage, action.microbatch).of(action.kind);
      }
  }
  return start;
}

TEST(Transfers, DrawnOnesAreTimedAsTheirRowsSay) {
  int later = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Case c = random_case(random);
    const TableTime plain = time_table(c.schedule, c.shape, c.costs, c.options);
    const Schedule sends = with_sends(c.schedule, c.shape);
    EXPECT_EQ(time_table(sends, c.shape, c.costs, c.options).makespan, plain.makespan);
    const Schedule moved = test::with_moved_sends(random, sends, c.shape);
    const TableTime time = time_table(moved, c.shape, c.costs, c.options);
    const Schedule whole = with_receives(moved, c.shape, time);
    ASSERT_EQ(message_of([&] { validate(whole, c.shape); }), "no error") << print(whole);
    EXPECT_EQ(print(parse_schedule(print(whole), "plan.csv")), print(whole));
    EXPECT_EQ(without_transfers(whole).actors, c.schedule.actors);
    const TableTime found = time_table(whole, c.shape, c.costs, c.options);
    EXPECT_EQ(found.makespan, time.makespan) << print(whole);
    EXPECT_EQ(found.start, starts_by_repetition(c, whole)) << print(whole);
    EXPECT_GE(found.makespan, dependency_bound(whole, c.shape, c.costs, c.options) - 1e-9);
    EXPECT_EQ(timeline_of(whole, c.shape, c.costs, found).makespan, found.makespan);
    later += found.makespan != plain.makespan;
  }
  EXPECT_GT(later, test::rounds(30));
}

// Taking away, doubling or moving an end of a transfer is refused at a place, or leaves a table that can run.
TEST(Transfers, BrokenOnesAreRefusedWithTheirPlace) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(1000u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Case c = random_case(random);
    const Schedule sends = with_sends(c.schedule, c.shape);
    Schedule broken = with_receives(sends, c.shape, time_table(sends, c.shape, c.costs, c.options));
    std::vector<Position> ends;
    for_each_action(broken, [&](const Action& action, Position p) {
      if (is_transfer(action.kind)) ends.push_back(p);
    });
    if (ends.empty()) continue;
    const Position p = ends[at(draw(random, 0, static_cast<int>(ends.size()) - 1))];
    std::vector<Action>& row = broken.actors[at(p.actor)];
    const Action end = row[at(p.index)];
    const int how = draw(random, 0, 2);
    if (how != 1) row.erase(row.begin() + p.index);
    if (how > 0) row.insert(row.begin() + draw(random, 0, static_cast<int>(row.size())), end);
    const std::string message = message_of([&] { validate(parse_schedule(print(broken), "plan.csv"), c.shape); });
    if (how < 2) ASSERT_NE(message, "no error") << print(broken);
    if (message == "no error") {
      EXPECT_EQ(time_table(broken, c.shape, c.costs, c.options).start, starts_by_repetition(c, broken)) << print(broken);
      continue;
    }
    ++refused;
    EXPECT_EQ(message.find("plan.csv:"), 0u) << message;
  }
  EXPECT_GT(refused, test::rounds(500));
}

}  // namespace
}  // namespace penstock
