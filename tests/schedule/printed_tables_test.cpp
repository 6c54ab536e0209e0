// SPDX-License-Identifier: Apache-2.0
// Tables as text say all that the generators say: each schedule's under each option that it takes.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/search.h"
#include "penstock/table.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

using Change = void (*)(ScheduleOptions&);

const std::map<std::string, Change>& changes() {
  static const std::map<std::string, Change> all = {
      {"nothing", [](ScheduleOptions&) {}},
      {"split backward", [](ScheduleOptions& o) { o.split_backward = true; }},
      {"forward only", [](ScheduleOptions& o) { o.forward_only = true; }},
      {"frozen", [](ScheduleOptions& o) { o.frozen = {0.1, 1}; }},
      {"self-conditioning", [](ScheduleOptions& o) { o.self_conditioning = true; }},
      {"head shards", [](ScheduleOptions& o) { o.head_shards = 3; }},
      {"in flight", [](ScheduleOptions& o) { o.in_flight = 3; }},
      {"group", [](ScheduleOptions& o) { o.group = 2; }},
      {"unit", [](ScheduleOptions& o) { o.unit = 4; }},
      {"transfers", [](ScheduleOptions& o) { o.transfers = {0.5}; }},
      {"balance", [](ScheduleOptions& o) { o.balance.assign(static_cast<std::size_t>(o.actors), 1.5); }},
  };
  return all;
}

// Calls visit(change, options) with several sizes and each change.
template <class Visit>
void for_each_option(Visit&& visit) {
  for (const int actors : {2, 4})
    for (const int chunks : {1, 2, 4})
      for (const int slices : {1, 3})
        for (const int window : {1, 3})
          for (const auto& [change, make] : changes()) {
            ScheduleOptions options{.actors = actors, .microbatches = 8, .window = window, .chunks = chunks, .slices = slices};
            make(options);
            SCOPED_TRACE(concat(change, ", actors ", actors, " chunks ", chunks, " slices ", slices, " window ", window));
            visit(change, options);
          }
}

void expect_read_as_printed(const Schedule& table) {
  const Schedule read = parse_schedule(print(table), table.name);
  EXPECT_EQ(print(read), print(table));
  EXPECT_EQ(read.actors, table.actors);
  EXPECT_EQ(read.slices, table.slices);
  EXPECT_EQ(read.blocks, table.blocks);
  EXPECT_EQ(read.predecessors, table.predecessors);
  EXPECT_EQ(read.forward_times, table.forward_times);
  EXPECT_EQ(read.steps, table.steps);
  const StageShape shape = shape_of(table), again = shape_of(read);
  EXPECT_EQ(again.predecessors, shape.predecessors);
  EXPECT_EQ(again.has_backward, shape.has_backward);
  EXPECT_EQ(again.has_parameters, shape.has_parameters);
  const std::string refused = message_of([&] { validate(table, shape); });
  EXPECT_EQ(message_of([&] { validate(read, again); }) == "no error", refused == "no error") << refused;
  if (table.steps > 1 && refused != "no error") return;  // copies of stages and gathers are of one step
  EXPECT_EQ(refused, "no error");
  EXPECT_EQ(time_table(read, again, uniform_costs(read)).makespan, time_table(table, shape, uniform_costs(table)).makespan);
}

TEST(PrintedTables, AreReadAsTheyWere) {
  std::set<std::string> changed;
  for (const ScheduleInfo& info : schedules()) {
    SCOPED_TRACE(info.name);
    int tables = 0;
    for_each_option([&](const std::string& change, const ScheduleOptions& options) {
      Schedule table;
      try {
        table = make_schedule(info.name, options);
      } catch (const Error&) {
        return;  // it does not take that
      }
      expect_read_as_printed(table);
      changed.insert(change);
      ++tables;
    });
    EXPECT_GT(tables, 0);
  }
  EXPECT_EQ(changed.size(), changes().size());
}

TEST(PrintedTables, WithUpdatesAndGathersToo) {
  for (const char* name : {"1f1b", "zeropp", "zb-v", "dualpipe", "slimpipe", "bidirectional"}) {
    SCOPED_TRACE(name);
    const bool chunked = name != std::string("1f1b") && name != std::string("slimpipe") && name != std::string("dualpipe");
    const Schedule table = make_schedule(name, {.actors = 4, .microbatches = 8, .chunks = chunked ? 2 : 1});
    expect_read_as_printed(with_gathers(table));
    expect_read_as_printed(with_gathers(with_updates(table), /*turns=*/true));
    expect_read_as_printed(sliced(with_updates(table), 2));
  }
}

TEST(PrintedTables, SayWhichStagesFeedWhich) {
  const Schedule table = make_schedule("bidirectional", {.actors = 2, .microbatches = 2, .window = 2, .chunks = 2, .frozen = {0.5, 0.25}});
  EXPECT_TRUE(print(table).starts_with("#feeds,0>1,1>2,2>3,1>4,4>5\n#forward,0.5,0.25\n0F0")) << print(table);
  const Schedule head = make_schedule("slimpipe", {.actors = 2, .microbatches = 2, .slices = 2, .head_shards = 2});
  EXPECT_TRUE(print(head).starts_with("#feeds,0>1,1>2,1>3,2>4,3>4\n0.0F0")) << print(head);
  EXPECT_EQ(shape_of(parse_schedule(print(head), "t.csv")).predecessors, sliced(chain_with_head(2, 2), 2).predecessors);
  // Tables that the search finds for stages that are no chain, and GraphPipe's.
  StageShape fork = chain(4);
  fork.predecessors = {{}, {0}, {0}, {1, 2}};
  const Schedule made = graphpipe(fork, 4);
  EXPECT_TRUE(print(made).starts_with("#feeds,0>1,0>2,1>3,2>3\n0F0")) << print(made);
  const SearchProblem problem{.shape = fork, .actors = 4, .microbatches = 4, .costs = uniform_costs(4)};
  const Schedule found = search_schedule(problem, {.placements = {placement_of(made)}, .seconds = 0.1}).schedule;
  EXPECT_EQ(shape_of(parse_schedule(print(found), "t.csv")).predecessors, fork.predecessors);
}

TEST(PrintedTables, AModelHasTheOrderThatATableSays) {
  const std::string csv = "#feeds,0>2,1>2\n0F0,0B0\n1F0,1B0\n2F0,2B0\n";
  const Schedule table = parse_schedule(csv, "t.csv");
  StageShape shape = chain(3);
  EXPECT_EQ(
      message_of([&] { validate(table, shape); }),
      "t.csv: stage 0 feeds stage 1, which the table has beside it, not behind it\n"
      "  hint: use a schedule for a chain of stages, or a model whose stages feed each other as the table's do: for bidirectional, of "
      "two: --set model.name=latent_diffusion --set backbones=2");
  shape.predecessors = {{}, {}, {1}};  // fewer edges than the table's
  EXPECT_EQ(message_of([&] { validate(table, shape); }), "no error");
  // Stages further behind are behind, too.
  const Schedule longer = parse_schedule("#feeds,0>1,1>2\n0F0,0B0\n1F0,1B0\n2F0,2B0\n", "t.csv");
  shape.predecessors = {{}, {0}, {0, 1}};
  EXPECT_EQ(message_of([&] { validate(longer, shape); }), "no error");
}

TEST(PrintedTables, WhatIsSaidIsOfTheTablesStages) {
  Schedule table = make_schedule("1f1b", {.actors = 3, .microbatches = 2});
  using Predecessors = std::vector<std::vector<std::int32_t>>;
  for (const Predecessors& wrong :
       {Predecessors{{}, {0}}, Predecessors{{}, {2}, {1}}, Predecessors{{}, {-1}, {1}}, Predecessors{{}, {0}, {1}, {2}}}) {
    table.predecessors = wrong;
    EXPECT_EQ(message_of([&] { validate(table, chain(3)); }),
              "1f1b: what it says of which stages feed which is not of its 3 stages\n"
              "  hint: give each stage those that feed it, all of smaller number");
  }
}

TEST(PrintedTables, PlacesAreLinesOfTheFile) {
  const std::string csv = "#feeds,0>1\n#forward,0.5\n0F0\n1F0,1B0,1B0\n";
  const std::string message = message_of([&] { validate(parse_schedule(csv, "t.csv"), chain(2)); });
  EXPECT_TRUE(message.starts_with("t.csv: stage 0 is trained")) << message;
  StageShape shape = chain(2);
  shape.has_backward[0] = shape.has_parameters[0] = false;
  EXPECT_TRUE(message_of([&] { validate(parse_schedule(csv, "t.csv"), shape); }).starts_with("t.csv:4:3: 1B0 stands twice"));
  EXPECT_TRUE(message_of([] { parse_schedule("#feeds,0>1\n0F0\n1F0,1Q0\n", "t.csv"); }).starts_with("t.csv:3:2: cannot read \"1Q0\""));
}

TEST(PrintedTables, WrongLinesInFrontAreRefused) {
  const auto refused = [](const std::string& csv) { return message_of([&] { parse_schedule(csv, "t.csv"); }); };
  const std::string known = "\n  hint: in front of a table's rows may stand #feeds,0>1,1>2 and #forward,0.5, once each";
  EXPECT_EQ(refused("#feed,0>1\n0F0\n"), "t.csv:1:1: \"#feed\" is not known" + known);
  EXPECT_EQ(refused("0F0\n#feeds,0>1\n1F0\n"), "t.csv:1:1: \"#feeds\" stands twice, or behind a row" + known);
  EXPECT_EQ(refused("#forward,1\n#forward,1\n0F0\n"), "t.csv:2:1: \"#forward\" stands twice, or behind a row" + known);
  EXPECT_EQ(refused("#feeds,0>1,1>1\n0F0\n1F0\n"),
            "t.csv:1:3: cannot read \"1>1\" as two stages of which the first feeds the second\n"
            "  hint: write 0>1; a stage feeds stages of larger number");
  for (const char* cell : {"1>0", "0>", ">1", "0-1", "0>1>2", "-1>1", "0>99999999999"})
    EXPECT_TRUE(refused(concat("#feeds,", cell, "\n0F0\n1F0\n")).starts_with(concat("t.csv:1:2: cannot read \"", cell))) << cell;
  EXPECT_EQ(refused("#feeds,0>2\n0F0\n1F0\n"),
            "t.csv: #feeds names stage 2 of a table with 2 stages\n  hint: leave it out, or add the stage's actions");
  EXPECT_EQ(refused("#forward,1,1,1\n0F0\n1F0\n"),
            "t.csv: #forward names stage 2 of a table with 2 stages\n  hint: leave it out, or add the stage's actions");
  for (const char* cell : {"0", "-1", "x", "nan", "inf", "1e7", "1s"})
    EXPECT_EQ(refused(concat("#forward,", cell, "\n0F0\n")),
              concat("t.csv:1:2: cannot read \"", cell,
                     "\" as what a forward takes over that of a stage that is trained\n  hint: it is above 0 and at most 1e6"));
}

}  // namespace
}  // namespace penstock
