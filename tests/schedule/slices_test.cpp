// SPDX-License-Identifier: Apache-2.0
// Tables of slices: how they are written, what they may say, and that any table has one.
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::draw;
using test::message_of;
using test::Random;

Schedule parsed(const std::string& csv) {
  return parse_schedule(csv, "plan.csv");
}

std::string refused(const std::string& csv) {
  return message_of([&] { parsed(csv); });
}

// The message for a table that is checked against two stages in two slices.
std::string verdict(const std::string& csv) {
  return message_of([&] { validate(parsed(csv), sliced(chain(2), 2)); });
}

const char* const kActor0 = "0.0F0,0.1F0,0.1B0,0.0B0\n";
const char* const kActor1 = "1.0F0,1.1F0,1.1B0,1.0B0\n";

TEST(Slices, AreStagesInTheTable) {
  const Schedule schedule = parsed("1.0F0,1.2x3F1,(1.1F2;0.2B5)OVERLAP_F_B,0.0F0,0.1F0,1U\n");
  EXPECT_EQ(schedule.slices, 3);
  const std::vector<Action> expected = {{3, Kind::F, 0}, {5, Kind::F, 1, 3}, {4, Kind::F, 2, 1, true}, {2, Kind::B, 5}, {0, Kind::F, 0},
                                        {1, Kind::F, 0}, {3, Kind::U}};
  EXPECT_EQ(schedule.actors, std::vector<std::vector<Action>>{expected});
  EXPECT_EQ(schedule.stages(), 6);
  EXPECT_EQ(print(schedule), "1.0F0,1.2x3F1,(1.1F2;0.2B5)OVERLAP_F_B,0.0F0,0.1F0,1U\n");
  EXPECT_EQ(text(expected[1], 3), "1.2x3F1");
  EXPECT_EQ(text(expected[1]), "5x3F1");
  EXPECT_EQ(stage_text(5, 3), "1.2");
}

TEST(Slices, OneSliceIsTheWhole) {
  const Schedule schedule = parsed("0.0F0,0.0B0\n");
  EXPECT_EQ(schedule.slices, 1);
  EXPECT_EQ(print(schedule), "0F0,0B0\n");
}

TEST(Slices, OfTheShape) {
  StageShape shape = chain(3);
  shape.predecessors[2] = {0, 1};
  shape.has_backward[1] = false;
  shape.has_parameters[2] = false;
  const StageShape out = sliced(shape, 2);
  EXPECT_EQ(out.predecessors, (std::vector<std::vector<std::int32_t>>{{}, {0}, {0}, {1, 2}, {0, 2}, {1, 3, 4}}));
  EXPECT_EQ(out.has_backward, (std::vector<bool>{true, true, false, false, true, true}));
  EXPECT_EQ(out.has_parameters, (std::vector<bool>{true, true, true, true, false, false}));
  EXPECT_EQ(shape_of(parsed(concat(kActor0, kActor1))).predecessors, sliced(chain(2), 2).predecessors);
}

TEST(Slices, OfATable) {
  EXPECT_EQ(print(sliced(parsed("0x2F0,0OFFLOAD0,0RELOAD0,0R1,0x2I0,0W0,0W1,0U\n"), 2)),
            "0.0x2F0,0.1x2F0,0.0OFFLOAD0,0.1OFFLOAD0,0.1RELOAD0,0.0RELOAD0,0.1R1,0.0R1,0.1x2I0,0.0x2I0,0.1W0,0.0W0,0.1W1,0.0W1,0U\n");
  EXPECT_EQ(print(sliced(parsed("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"), 2)), "0.0F0,0.1F0,(0.0F1;0.1F1;0.1B0;0.0B0)OVERLAP_F_B,0.1B1,0.0B1\n");
}

// Block 0 of slice 1 of stage 1 is a stage behind that slice.
TEST(Slices, MayHaveBlocksApart) {
  const Schedule schedule = parsed("0.0F0,0.1F0,1.1.0F0\n1.0F0,1.1F0,2.0F0,2.1F0,1.1.0F1,1U\n");
  const std::vector<StagePart> blocks = {{1, 1, 0}};
  EXPECT_EQ(schedule.blocks, blocks);
  EXPECT_EQ(schedule.actors[0], (std::vector<Action>{{0, Kind::F, 0}, {1, Kind::F, 0}, {4, Kind::F, 0}}));
  EXPECT_EQ(schedule.actors[1],
            (std::vector<Action>{{2, Kind::F, 0}, {3, Kind::F, 0}, {5, Kind::F, 0}, {6, Kind::F, 0}, {4, Kind::F, 1}, {2, Kind::U}}));
  EXPECT_EQ(print(schedule), "0.0F0,0.1F0,1.1.0F0\n1.0F0,1.1F0,2.0F0,2.1F0,1.1.0F1,1U\n");
  EXPECT_EQ(schedule.stages(), 7);
  EXPECT_EQ(schedule.whole_stages(), 3);
  const StageShape shape = shape_of(schedule);
  EXPECT_EQ(shape.predecessors, (std::vector<std::vector<std::int32_t>>{{}, {0}, {0}, {1, 2}, {0, 1, 2}, {2}, {3, 4, 5}}));
  EXPECT_EQ(shape.has_parameters, (std::vector<bool>{true, true, true, true, false, true, true}));
}

// Numbers of parts are those of their order, whatever blocks are apart.
TEST(Slices, PartsAreNumberedInOrder) {
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int stages = draw(random, 1, 4), slices = draw(random, 1, 6);
    std::vector<StagePart> blocks, parts;
    for (int stage = 0; stage < stages; ++stage)
      for (int slice = 0; slice < slices; ++slice) {
        parts.push_back({stage, slice});
        for (int block = 0; block < slice; ++block)
          if (draw(random, 0, 2) == 0) blocks.push_back(parts.emplace_back(StagePart{stage, slice, block}));
      }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto number = static_cast<std::int32_t>(i);
      EXPECT_EQ(number_of(parts[i], slices, blocks), number);
      EXPECT_EQ(part_of(number, slices, blocks), parts[i]);
    }
  }
}

TEST(Slices, BadBlocksAreRefused) {
  constexpr const char* kWhat =
      "  an action is a stage, a kind and a micro-batch, such as 2F0 or 3B5; the cells of a row are its actor's actions in order\n";
  EXPECT_EQ(refused("0.0F0,0.1F0,0.1.F0\n"),
            concat("plan.csv:1:3: cannot read \"0.1.F0\" as an action\n  a block's number is missing after the second '.'\n",
                   std::string_view(kWhat).substr(0, std::string_view(kWhat).size() - 1)));
  EXPECT_EQ(refused("0.0F0,0.1F0,0.1.1F0\n"),
            concat("plan.csv:1:3: cannot read \"0.1.1F0\" as an action\n  block 1 is not of a slice before slice 1\n", kWhat,
                   "  hint: a block is attention to the keys of an earlier slice; that to a slice's own keys stays with it"));
  EXPECT_EQ(refused("0.0F0,1.0F0,1.1F0,0.1.0F0\n"),
            "plan.csv:1:3: 1.1F0 names slice 1, but stage 0 has no slice 1\n"
            "  slices are numbered from 0 without gaps, and every stage has as many\n"
            "  hint: add actions of 0.1, or correct the number");
  const std::string apart = "0.0F0,0.1F0,1.1.0F0,1.1.0B0,0.1B0,0.0B0\n";
  EXPECT_EQ(verdict(concat(apart, kActor1)),
            "plan.csv: the table has 1 block of attention apart, the model others, 0\n"
            "  hint: cut the model by the blocks of this table");
  EXPECT_EQ(message_of([&] { validate(parsed(concat(apart, kActor1)), sliced(chain(2), 2, {{1, 1, 0}})); }), "no error");
  // Its gradients of keys are added up by the slice before.
  EXPECT_EQ(
      message_of([&] { validate(parsed(concat("0.0F0,0.1F0,1.1.0F0,0.1B0,1.1.0B0,0.0B0\n", kActor1)), sliced(chain(2), 2, {{1, 1, 0}})); }),
      "plan.csv:1:4: 0.1B0 can never run (actor 0)\n"
      "  cycle: 0.1B0 needs 1.1.0B0; actor 0 runs 1.1.0B0 after 0.1B0\n"
      "  hint: move 1.1.0B0 (column 5) before column 4");
}

TEST(Slices, OnlySomeOfThemAreRefused) {
  EXPECT_EQ(refused("0.0F0,0.1F0\n1F0,1.1F0\n"),
            "plan.csv:2:1: 1F0 names no slice\n  0.1F0 at plan.csv:1:2 names one\n  hint: name a slice in every cell, or in none");
  EXPECT_EQ(refused("0.0F0,0.1F0\n1.1F0\n"),
            "plan.csv:1:2: 0.1F0 names slice 1, but stage 1 has no slice 0\n"
            "  slices are numbered from 0 without gaps, and every stage has as many\n"
            "  hint: add actions of 1.0, or correct the number");
  EXPECT_EQ(refused("0.0F0,0.2F0,0.1F0\n1.0F0,1.1F0\n"),
            "plan.csv:1:2: 0.2F0 names slice 2, but stage 1 has no slice 2\n"
            "  slices are numbered from 0 without gaps, and every stage has as many\n"
            "  hint: add actions of 1.2, or correct the number");
  EXPECT_EQ(refused("2.0F0,2.1F0\n0.0F0,0.1F0\n"),
            "plan.csv:1:2: 2.1F0 names slice 1, but stage 1 has no slice 0\n"
            "  slices are numbered from 0 without gaps, and every stage has as many\n"
            "  hint: add actions of 1.0, or correct the number");
  EXPECT_EQ(refused("0.0F0,0.2147483647F0\n"),
            "plan.csv:1:2: 0.2147483647F0 names slice 2147483647 of a table with 2 actions\n  slices are numbered from 0 without gaps");
  EXPECT_EQ(refused("7.1F0,0.0F0\n"),
            "plan.csv:1:1: 7.1F0 names stage 7 of a table with 2 actions\n  stages are numbered from 0 without gaps");
}

TEST(Slices, HaveNoUpdatesOfTheirOwn) {
  EXPECT_EQ(refused("0.0F0,0.1F0,0.1U\n"),
            "plan.csv:1:3: cannot read \"0.1U\" as an action\n"
            "  U is of a whole stage, not of a slice\n"
            "  an action is a stage, a kind and a micro-batch, such as 2F0 or 3B5; the cells of a row are its actor's actions in order\n"
            "  hint: write 0U");
  const Schedule table = parsed(concat("0.0F0,0.1F0,0.1B0,0.0B0,0U\n", kActor1));
  EXPECT_EQ(message_of([&] { validate(table, shape_of(table)); }), "no error");
  EXPECT_EQ(print(with_updates(table)), "0.0F0,0.1F0,0.1B0,0.0B0,0U\n1.0F0,1.1F0,1.1B0,1.0B0,1U\n");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.1B0,0U,0.0B0\n", kActor1)),
            "plan.csv:1:4: 0U is too early: actor 0 goes on with stage 0 after it\n"
            "  a stage is updated once in a step, when its gradients are complete\n"
            "  hint: move it behind the stage's last action, or leave it out: what has no U is updated at the end");
  EXPECT_EQ(verdict(concat(kActor0, "1.0F0,1.1F0,1.1B0,1.0B0,0U\n")), "plan.csv:2:5: 0U: actor 1 has nothing of stage 0 to update");
}

// All slices of a stage have its parameters from one gather, and what they add to its gradients is reduced once.
TEST(Slices, GatherTheirStageTogether) {
  const auto gathered = [](const std::string& csv, bool turns) { return print(with_gathers(parsed(csv), turns)); };
  EXPECT_EQ(gathered(kActor0, false), "0UNSHARD,0.0F0,0.1F0,0RESHARD,0UNSHARD,0.1B0,0.0B0,0RESHARD,0REDUCE_GRAD\n");
  EXPECT_EQ(gathered(kActor0, true), "0UNSHARD,0.0F0,0.1F0,0.1B0,0.0B0,0RESHARD,0REDUCE_GRAD\n");
  EXPECT_EQ(gathered("0.0F0,0.1F0,1.0F0,1.1F0,1.1I0,1.0I0,0.1I0,0.0I0,1.1W0,1.0W0,0.1W0,0.0W0\n", false),
            "0UNSHARD,1UNSHARD,0.0F0,0.1F0,0RESHARD,1.0F0,1.1F0,1RESHARD,1UNSHARD,0UNSHARD,1.1I0,1.0I0,1RESHARD,0.1I0,0.0I0,0RESHARD,"
            "1.1W0,1.0W0,1REDUCE_GRAD,0.1W0,0.0W0,0REDUCE_GRAD\n");
  EXPECT_EQ(print(sliced(parsed("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n"), 2)),
            "0UNSHARD,0.0F0,0.1F0,0.1B0,0.0B0,0RESHARD,0REDUCE_GRAD\n");
}

TEST(Slices, FindTheirParametersWhereTheyAreGathered) {
  const std::string gathers_none = concat("0.0F0,0UNSHARD,0.1F0,0.1B0,0.0B0\n", kActor1);
  EXPECT_EQ(verdict(concat("0UNSHARD,0.0F0,0.1F0,0.1B0,0.0B0,0RESHARD,0REDUCE_GRAD\n", kActor1)), "no error");
  EXPECT_EQ(verdict(gathers_none),
            "plan.csv:1:1: 0.0F0 finds its parameters sharded\n"
            "  actor 0 gathers those of stage 0, but they are not there\n"
            "  hint: add 0UNSHARD before it");
  EXPECT_EQ(verdict(concat("0UNSHARD,0.0F0,0RESHARD,0.1F0,0.1B0,0.0B0\n", kActor1)),
            "plan.csv:1:4: 0.1F0 finds its parameters sharded\n"
            "  actor 0 gathers those of stage 0, but they are not there\n"
            "  hint: add 0UNSHARD before it");
  EXPECT_EQ(verdict(concat(kActor0, "1.0F0,1.1F0,1.1B0,1REDUCE_GRAD,1.0B0\n")),
            "plan.csv:2:5: 1.0B0: its gradient is never reduced\n"
            "  the last 1REDUCE_GRAD of actor 1 stands at plan.csv:2:4\n"
            "  hint: move it behind 1.0B0, or add one there");
  EXPECT_EQ(verdict(concat(kActor0, "1REDUCE_GRAD,1.0F0,1.1F0,1.1B0,1.0B0\n")),
            "plan.csv:2:1: 1REDUCE_GRAD has nothing to reduce\n  neither B nor W of stage 1 stands before it on actor 1");
  EXPECT_EQ(verdict(concat(kActor0, "1.0F0,1.1F0,1.1B0,1.0B0,1UNSHARD3\n")),
            "plan.csv:2:5: 1UNSHARD3 names a micro-batch\n"
            "  parameters, and the sum of gradients, belong to a stage\n"
            "  hint: write 1UNSHARD");
  EXPECT_EQ(refused("0.0F0,0.1F0,0.1UNSHARD\n"),
            "plan.csv:1:3: cannot read \"0.1UNSHARD\" as an action\n"
            "  UNSHARD is of a whole stage, not of a slice\n"
            "  an action is a stage, a kind and a micro-batch, such as 2F0 or 3B5; the cells of a row are its actor's actions in order\n"
            "  hint: write 0UNSHARD");
}

TEST(Slices, AreCheckedAsTheStagesThatTheyAre) {
  EXPECT_EQ(verdict(concat(kActor0, kActor1)), "no error");
  EXPECT_EQ(verdict(concat(kActor0, kActor1, "2.0F0,2.1F0\n")),
            "plan.csv:3:1: 2.0F0 names an unknown stage\n"
            "  the model has 2 stages, 0 to 1; the table names 3\n"
            "  hint: use a table made for this number of stages, or cut the model into as many");
  EXPECT_EQ(message_of([] { validate(parsed(concat(kActor0, kActor1)), chain(4)); }),
            "plan.csv: the table has 2 slices of each stage, the model 1\n"
            "  hint: use a table of as many slices, or cut the model's sequences into as many");
  EXPECT_EQ(verdict("0F0,0B0\n1F0,1B0\n"),
            "plan.csv: the table has 1 slice of each stage, the model 2\n"
            "  hint: use a table of as many slices, or cut the model's sequences into as many");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.1B0,0.0B0,0.1F1,0.1B1,0.0B1\n", kActor1)),
            "plan.csv:1:7: 0.0F1 is missing before 0.0B1\n"
            "  stage 0.0 must run forward once for each of 2 micro-batches; the table has 1 such forward\n"
            "  plan.csv:1:5: 0.1F1 names the last micro-batch\n"
            "  hint: add 0.0F1, or give the model as many stages and micro-batches as the table has");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.1F0,0.1B0,0.0B0\n", kActor1)),
            "plan.csv:1:3: 0.1F0 stands twice\n"
            "  0.1F0 stands at plan.csv:1:2\n"
            "  each stage does F, and B or I and W, once per micro-batch, R or OFFLOAD and RELOAD at most once\n"
            "  hint: remove one of them");
  EXPECT_EQ(verdict(concat(kActor0, "1.0F0,1.1F0,1.1B0\n")),
            "plan.csv:2:1: 1.0F0 has no backward\n  1.0B0 or 1.0I0 is missing\n  hint: add it to row 2, where 1.0F0 stands");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.1I0,0.0B0\n", kActor1)),
            "plan.csv:1:3: 0.1I0 has no weight gradient after it\n"
            "  0.1W0 is missing\n"
            "  hint: add 0.1W0 to any row, or write 0.1B0 for both");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.0B0\n", "1.0F0,1.1F0,1.1B0,1.0B0,0.1B0\n")),
            "plan.csv:2:5: 0.1B0 runs on actor 1, its forward on actor 0\n"
            "  0.1F0 stands at plan.csv:1:2\n"
            "  B and R run where their forward left its residuals, and I with an R or OFFLOAD; W, and I without, may run elsewhere\n"
            "  hint: move 0.1B0 to row 1");
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.1OFFLOAD0,0.1B0,0.0B0\n", kActor1)),
            "plan.csv:1:3: 0.1OFFLOAD0 is never reloaded\n"
            "  0.1RELOAD0 is missing\n"
            "  hint: add it before the backward, or leave out 0.1OFFLOAD0");
}

TEST(Slices, OfAStageAreOnOneActor) {
  EXPECT_EQ(verdict("0.0F0,1.1F0,1.1B0,0.0B0\n1.0F0,0.1F0,0.1B0,1.0B0\n"),
            "plan.csv:1:2: 1.1F0 runs on actor 0, the slice before it on actor 1\n"
            "  1.0F0 stands at plan.csv:2:1\n"
            "  a slice reads the keys and values of the slices before it, where these left them\n"
            "  hint: move 1.1F0 to row 2");
  // Other micro-batches may take other actors: stages may have copies.
  EXPECT_EQ(verdict("0.0F0,0.1F0,1.0F1,1.1F1,1.1B1,1.0B1,0.1B0,0.0B0\n0.0F1,0.1F1,1.0F0,1.1F0,1.1B0,1.0B0,0.1B1,0.0B1\n"), "no error");
}

TEST(Slices, GoBackFromTheLastToTheFirst) {
  EXPECT_EQ(verdict(concat("0.0F0,0.1F0,0.0B0,0.1B0\n", kActor1)),
            "plan.csv:1:3: 0.0B0 can never run (actor 0)\n"
            "  cycle: 0.0B0 needs 0.1B0; actor 0 runs 0.1B0 after 0.0B0\n"
            "  hint: move 0.1B0 (column 4) before column 3");
  EXPECT_EQ(verdict(concat("0.1F0,0.0F0,0.1B0,0.0B0\n", kActor1)),
            "plan.csv:1:1: 0.1F0 can never run (actor 0)\n"
            "  cycle: 0.1F0 needs 0.0F0; actor 0 runs 0.0F0 after 0.1F0\n"
            "  hint: move 0.0F0 (column 2) before column 1");
}

TEST(Slices, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { sliced(parsed(kActor0), 2); }), "plan.csv is in 2 slices already");
  EXPECT_EQ(message_of([] { sliced(parsed("0F0\n"), 0); }), "plan.csv: slices must be at least 1, not 0");
  EXPECT_EQ(message_of([] { make_schedule("1f1b", {.slices = 0}); }), "1f1b: --slices must be at least 1, not 0");
  EXPECT_EQ(message_of([] { make_schedule("slimpipe", {.actors = 1 << 10, .microbatches = 1 << 10, .slices = 1 << 10}); }),
            "slimpipe: a table of 1024 actors x 1 chunks x 1024 micro-batches x 1024 slices is too large\n"
            "  the product may be up to 134217728");
}

// Valid, and the same when read back.
void expect_good(const Schedule& table, const StageShape& shape) {
  ASSERT_EQ(message_of([&] { validate(table, shape); }), "no error") << print(table);
  const Schedule read = parse_schedule(print(table), table.name);
  EXPECT_EQ(read.actors, table.actors);
  EXPECT_EQ(read.slices, table.slices);
  EXPECT_EQ(read.blocks, table.blocks);
}

TEST(Slices, EveryScheduleHasThem) {
  std::set<std::string> seen;
  for (const ScheduleInfo& info : schedules()) {
    for (const int p : {1, 2, 4}) {
      for (const int m : {1, 4, 6}) {
        for (const int v : {1, 2}) {
          for (int n = 1; n <= 4; ++n) {
            SCOPED_TRACE(concat(info.name, ", p ", p, ", m ", m, ", v ", v, ", n ", n));
            ScheduleOptions options{.actors = p, .microbatches = m, .chunks = v};
            if (message_of([&] { make_schedule(info.name, options); }) != "no error") continue;
            const StageShape whole = shape_of(make_schedule(info.name, options));
            options.slices = n;
            const Schedule table = make_schedule(info.name, options);
            EXPECT_EQ(table.slices, n);
            const StageShape shape = sliced(whole, n, table.blocks);
            expect_good(table, shape);
            options.split_backward = true;
            expect_good(make_schedule(info.name, options), shape);
            options.forward_only = true;
            expect_good(make_schedule(info.name, options), shape_of(make_schedule(info.name, options)));
            seen.insert(info.name);
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), schedules().size());
}

// Slices of any table over any DAG are valid, and at even shares never slower: they wait for no more than the whole did.
TEST(Slices, EveryTableHasThem) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const StageShape shape = test::random_shape(random, {.no_backward = 0.2, .no_parameters = 0.2});
    Schedule whole = test::random_schedule(random, shape, draw(random, 1, 4), draw(random, 1, 5),
                                           {.mixed_split = true, .foreign_weight = 0.2, .replica = 0.2});
    const int n = draw(random, 1, 4), stages = static_cast<int>(shape.predecessors.size());
    const StageShape slices = sliced(shape, n);
    const double before = time_table(whole, shape, uniform_costs(stages, {}, n)).makespan;
    EXPECT_LE(time_table(sliced(whole, n), slices, uniform_costs(stages * n)).makespan, before);
    for (const bool turns : {false, true})
      EXPECT_EQ(with_gathers(sliced(whole, n), turns).actors, sliced(with_gathers(whole, turns), n).actors);
    whole = test::with_counts(random, test::with_host_copies(random, test::with_recomputation(random, std::move(whole), 0.3)), shape);
    whole.name = "whole.csv";
    whole.cells.clear();
    const Schedule table = with_updates(sliced(test::with_pairs(random, whole), n));
    expect_good(table, slices);
    expect_good(with_gathers(table), slices);
  }
}

}  // namespace
}  // namespace penstock
