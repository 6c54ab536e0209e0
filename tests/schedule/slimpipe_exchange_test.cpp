// SPDX-License-Identifier: Apache-2.0
// SlimPipe's exchange as a table: the plan's loads, and what it gains.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/schedule.h"
#include "penstock/table.h"

namespace penstock {
namespace {

constexpr int kStages = 3;  // of an actor with one layer; the second is its attention

Schedule exchanging(int actors, int microbatches, int slices) {
  return make_schedule("slimpipe-exchange", {.actors = actors, .microbatches = microbatches, .slices = slices});
}

// The time of attention in a part: 1 for a block, and half a one for the causal part of each slice; with `at_home` as if none were apart.
double attention_of(const Schedule& schedule, const StagePart& part, bool at_home) {
  if (part.block >= 0) return at_home ? 0 : 1;
  if (part.stage % kStages != 1) return 0;
  const auto is_of_it = [&](const StagePart& block) { return block.stage == part.stage && block.slice == part.slice; };
  return part.slice + 0.5 - (at_home ? 0 : static_cast<double>(std::ranges::count_if(schedule.blocks, is_of_it)));
}

// By turn (in which actors are at slices one behind the other) the attention of each actor's F or B: what stands from its own first stage
// to its own last one. Turns in which an actor has no slice of its own are left out.
std::map<int, std::vector<double>> loads_of(const Schedule& schedule, Kind kind, bool at_home) {
  const int actors = static_cast<int>(schedule.actors.size()), slices = schedule.slices, first = kind == Kind::F ? 0 : kStages - 1;
  std::map<int, std::vector<double>> loads;
  for (int actor = 0; actor < actors; ++actor) {
    int turn = -1;
    for (const Action& action : schedule.actors[at(actor)]) {
      if (action.kind != kind) continue;
      const StagePart part = part_of(action.stage, slices, schedule.blocks);
      const int stage = part.stage - actor * kStages;
      if (stage == first) turn = action.microbatch * slices + (first == 0 ? part.slice + actor : slices + actors - 2 - part.slice - actor);
      if (turn < 0) continue;
      loads[turn].resize(at(actors));
      loads[turn][at(actor)] += attention_of(schedule, part, at_home);
      if (stage == kStages - 1 - first) turn = -1;
    }
  }
  std::erase_if(loads, [](const auto& load) { return std::ranges::find(load.second, 0.0) != load.second.end(); });
  return loads;
}

double largest_over_mean(const std::map<int, std::vector<double>>& loads) {
  double out = 0;
  for (const auto& [turn, load] : loads)
    out = std::max(out, std::ranges::max(load) * static_cast<double>(load.size()) / std::accumulate(load.begin(), load.end(), 0.0));
  return out;
}

TEST(SlimPipeExchange, EvensOutAttention) {
  struct Row {
    int actors, slices, moved;
    double before, after;
  };
  for (const Row& row : {Row{4, 8, 18, 2.5, 1.25}, Row{2, 8, 3, 1.875, 1.5}, Row{4, 4, 4, 1.75, 1.25}}) {
    SCOPED_TRACE(concat(row.actors, " actors, ", row.slices, " slices"));
    Schedule schedule = exchanging(row.actors, 3, row.slices);
    EXPECT_EQ(std::ssize(schedule.blocks), row.moved);
    for (const Kind kind : {Kind::F, Kind::B}) {
      EXPECT_DOUBLE_EQ(largest_over_mean(loads_of(schedule, kind, true)), row.before);
      EXPECT_DOUBLE_EQ(largest_over_mean(loads_of(schedule, kind, false)), row.after);
    }
  }
}

// F of an actor takes 1, of which `attention` in each of its layers together, and `head` in the whole vocabulary, B twice as long.
double makespan(const Schedule& schedule, double attention, double head = 0) {
  const double slices = schedule.slices, block = attention / (slices * slices);
  const int behind = kStages * static_cast<int>(schedule.actors.size()), parts = schedule.whole_stages() - behind - 1;
  TableCosts costs = uniform_costs(schedule.stages());
  for (std::int32_t number = 0; number < schedule.stages(); ++number) {
    const StagePart part = part_of(number, schedule.slices, schedule.blocks);
    double share = (1 - attention) / 2 / slices;
    if (part.stage >= behind)
      share = part.stage == behind + parts ? 0 : head / parts / slices;
    else if (part.stage % kStages == 1)
      share = 2 * block * attention_of(schedule, part, false);
    else if (part.stage + 1 == behind && parts < 0)
      share += head / slices;
    for (double& time : costs.stages[at(number)].time) time *= share;
  }
  return time_table(schedule, shape_of(schedule), costs).makespan;
}

// Slimpipe without exchange takes 13.828125 and 12.75; where slices cost alike, 13.125 and 12.375. Loads still differ by one block, which
// is all that two actors, whose slices are neighbours in seven of eight turns, differ by.
TEST(SlimPipeExchange, GainsMostOfWhatUnequalSlicesCost) {
  EXPECT_DOUBLE_EQ(makespan(exchanging(4, 4, 8), 0.5), 13.140625);
  EXPECT_DOUBLE_EQ(makespan(exchanging(2, 4, 8), 0.5), 12.7265625);
}

// Attention takes half of an actor's layers, and the vocabulary half as long as these: all work is 13.5 of each actor.
TEST(SlimPipeExchange, HasTheVocabularyInPartsBesides) {
  ScheduleOptions options{.actors = 4, .microbatches = 4, .slices = 8};
  EXPECT_DOUBLE_EQ(makespan(make_schedule("slimpipe-exchange", options), 0.5, 0.5), 18.390625);
  options.head_shards = 4;
  EXPECT_DOUBLE_EQ(makespan(make_schedule("slimpipe-exchange", options), 0.5, 0.5), 14.8046875);
}

TEST(SlimPipeExchange, TakesAnyNumberOfParts) {
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3})
      for (const int n : {1, 4, 8})
        for (const int shards : {2, 3, p + 1}) {
          SCOPED_TRACE(concat("p ", p, ", m ", m, ", n ", n, ", shards ", shards));
          const ScheduleOptions options{.actors = p, .microbatches = m, .chunks = 2, .slices = n, .head_shards = shards};
          const Schedule schedule = make_schedule("slimpipe-exchange", options);
          validate(schedule, sliced(chain_with_head(p * 5, shards), n, schedule.blocks), m);
          EXPECT_EQ(schedule.blocks, make_schedule("slimpipe-exchange", {.actors = p, .microbatches = m, .chunks = 2, .slices = n}).blocks);
          for (int part = 0; part < shards; ++part)
            EXPECT_EQ(actor_of_stage(schedule)[at(number_of({p * 5 + part}, n, schedule.blocks))], part % p);
        }
}

TEST(SlimPipeExchange, IsSlimPipeWhereNothingMoves) {
  for (const auto& [actors, slices] : {std::pair{1, 8}, {4, 1}, {2, 2}}) {
    const Schedule schedule = exchanging(actors, 3, slices);
    EXPECT_TRUE(schedule.blocks.empty());
    const Schedule slim = make_schedule("slimpipe", {.actors = actors, .microbatches = 3, .slices = slices});
    for (int actor = 0; actor < actors; ++actor) {
      std::vector<Action> row;  // of its first stages' forwards and backwards
      for (Action action : schedule.actors[at(actor)]) {
        const StagePart part = part_of(action.stage, slices);
        if (part.stage != actor * kStages) continue;
        action.stage = number_of({actor, part.slice}, slices);
        row.push_back(action);
      }
      EXPECT_EQ(row, slim.actors[at(actor)]);
    }
  }
}

}  // namespace
}  // namespace penstock
