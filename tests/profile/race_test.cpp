// SPDX-License-Identifier: Apache-2.0
#include "penstock/race.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "driver/training.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "profile/workbench.h"
#include "support/errors.h"
#include "support/fake_device.h"

namespace penstock {
namespace {

// Programs whose steps take as long as they are told to in each round, and what was asked of them.
struct Script {
  std::vector<std::vector<double>> seconds;  // by program and round
  std::string story{};
  int round = -1;

  std::vector<Sample> run(RaceOptions options) {
    options.restart = [this] {
      ++round;
      story += "|";
    };
    std::vector<TimedStep> programs;
    for (std::size_t i = 0; i < seconds.size(); ++i)
      programs.emplace_back([this, i] {
        story += concat(" ", i);
        return seconds[i].at(static_cast<std::size_t>(round));
      });
    return race(programs, options);
  }
};

TEST(Race, EveryProgramRunsOnceInEachRound) {
  Script script{{{1.0, 1.1, 1.2}, {1.1, 1.0, 1.0}}};
  std::string progress;
  const std::vector<Sample> samples =
      script.run({.rounds = 3, .steps = 2, .warm_up = 1, .progress = [&](const std::string& text) { progress += text + "\n"; }});
  EXPECT_EQ(script.story, "| 0 0 0 1 1 1| 0 0 0 1 1 1| 0 0 0 1 1 1");
  EXPECT_EQ(progress, "round 1 of 3: 2 tables\nround 2 of 3: 2 tables\nround 3 of 3: 2 tables\n");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].median, 1.1);
  EXPECT_EQ(samples[1].median, 1.0);
  EXPECT_EQ(samples[1].count, 3);
  EXPECT_TRUE(is_ahead(samples[1], samples[0]));
  EXPECT_EQ(test::message_of([] { race({}, {.rounds = 0}); }), "a race of 0 rounds of 8 steps\n  hint: both are above 0");
}

// The one that left is not ahead, whatever the machine did to the others since.
TEST(Race, WhatIsClearlyBehindLeaves) {
  Script script{{{1.0, 2.0, 2.0}, {1.2, 0, 0}, {1.05, 2.1, 2.1}}};
  const std::vector<Sample> samples = script.run({.rounds = 3, .steps = 1, .warm_up = 0});
  EXPECT_EQ(script.story, "| 0 1 2| 0 2| 0 2");
  EXPECT_EQ(samples[1].count, 1);
  EXPECT_EQ(samples[1].median, 1.2);
  EXPECT_TRUE(is_ahead(samples[0], samples[2]));
  EXPECT_TRUE(is_ahead(samples[2], samples[1]));
}

// One lucky round sends no more than half of the others away.
TEST(Race, TheFasterHalfStays) {
  Script script{{{2.0, 1.0}, {1.0, 2.0}, {4.0, 0}, {3.0, 0}}};
  script.run({.rounds = 2, .steps = 1, .warm_up = 0});
  EXPECT_EQ(script.story, "| 0 1 2 3| 0 1");
}

// The search's tables are measured as slow as they are wide, so that a published one is taken, and the others stay in their order; what
// cannot be prepared is named.
TEST(Race, OfASearch) {
  const auto problem = [](int chunks) {
    if (chunks > 1) throw Error("no costs");
    return SearchProblem{.shape = chain(2), .actors = 2, .microbatches = 4, .costs = uniform_costs(2)};
  };
  const auto step = [](double seconds) -> TimedStep { return [=] { return seconds; }; };
  RacedSearchOptions options{.search = {.moves = 200, .nodes = 200, .seconds = 10}, .race = {.rounds = 1, .steps = 1}};
  const RacedSearch alike = raced_search(problem, [&](const Schedule&) { return step(1); }, options);
  EXPECT_TRUE(alike.racers[0].named);
  EXPECT_EQ(alike.result.found_by, alike.racers[0].table.found_by);
  EXPECT_EQ(alike.unsearched, std::vector<std::string>{"2 stages per actor: no costs"});
  const std::string published = alike.racers[0].table.found_by;
  const auto without = [&](const Schedule& table) -> TimedStep {
    if (table.actors == alike.result.schedule.actors) throw Error("too large");
    return step(1);
  };
  const RacedSearch other = raced_search(problem, without, options);
  EXPECT_EQ(other.racers.back().refused, "too large");
  EXPECT_NE(other.racers[0].table.found_by, published);
  EXPECT_EQ(test::message_of([&] {
              raced_search(problem, [](const Schedule&) -> TimedStep { throw Error("too large"); }, options);
            }).substr(0, 45),
            "the model can run none of the tables found\n  ");
}

// Tables with other numbers of stages, one after the other on the same devices.
TEST(Race, RunsTablesOfOneModel) {
  std::vector<Override> overrides;
  for (const char* small : {"width=16", "heads=2", "context=8", "batch=4", "microbatches=4"}) overrides.push_back(parse_override(small));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared sequential = prepare_sequential(config, builtin_models());
  const Workbench bench{config, builtin_models(), make_dataset(config, *sequential.model), {}, [](Program&) {}};
  const auto cluster =
      make_thread_cluster(2, [](int device) { return make_fake_executor({static_cast<std::uint64_t>(device)}); }, bench.data);
  const auto prepare_table = table_steps(bench, *cluster);
  std::vector<TimedStep> programs;
  for (const auto& [name, chunks] : {std::pair("1f1b", 1), std::pair("interleaved-zb", 2), std::pair("zb-v", 2)})
    programs.push_back(prepare_table(make_schedule(name, {.actors = 2, .microbatches = 4, .chunks = chunks})));
  const StateSource state = fresh_start(config, sequential).state;
  const std::vector<Sample> samples =
      race(programs, {.rounds = 2, .steps = 2, .warm_up = 1, .restart = [&] { cluster->set_state(state); }});
  ASSERT_EQ(samples.size(), 3u);
  for (const Sample& sample : samples) {
    EXPECT_GT(sample.median, 0);
    EXPECT_GE(sample.count, 1);
  }
}

}  // namespace
}  // namespace penstock
