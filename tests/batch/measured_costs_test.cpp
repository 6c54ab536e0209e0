// SPDX-License-Identifier: Apache-2.0
// Times of micro-batches, fitted to some and known for all; and costs that are missing.
#include "batch/measured_costs.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::draw;
using test::message_of;
using test::Random;

BatchLoad random_load(Random& random) {
  return padded_load({draw(random, 1, 8), 8 * draw(random, 1, 64), draw(random, 0, 1) * 8 * draw(random, 1, 16)});
}

// Whatever the amounts cost, a fit of loads without noise says of other loads what they take.
TEST(LoadFit, FindsWhatMadeTheTimes) {
  constexpr unsigned kSeed = 81;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(20); ++round) {
    LoadFit truth;
    for (double& amount : truth.per_amount) amount = test::coin(random, 0.3) ? 0 : draw(random, 1, 100);
    std::vector<LoadPoint> points;
    for (int i = 0; i < 60; ++i) {
      const BatchLoad load = random_load(random);
      points.push_back({load, truth(load)});
    }
    const LoadFit fit = fit_loads(points);
    for (int i = 0; i < 30; ++i) {
      const BatchLoad load = random_load(random);
      EXPECT_NEAR(fit(load), truth(load), 0.01 * truth(load) + 1e-9) << "seed " << kSeed << ", round " << round;
    }
    for (const double amount : fit.per_amount) EXPECT_GE(amount, 0);
  }
}

TEST(LoadFit, NoPoints) {
  EXPECT_EQ(fit_loads({})(padded_load({1, 8, 0})), 0);
}

TEST(Loads, OfRaggedRows) {
  const BatchLoad load = ragged_load({{5, 2}, {9, 0}, {20, 3}}, {0, 2}, 8);
  EXPECT_EQ(load.shape, (BatchShape{0, 32, 8}));
  EXPECT_EQ(load.input, 32);
  EXPECT_EQ(load.input_squares, 425);
  EXPECT_EQ(load.target_squares, 13);
  EXPECT_EQ(load.products, 70);
}

BatchFit fit_of(std::initializer_list<ActionFit> actions) {
  return {.stages = 2, .actions = actions};
}

TEST(MeasuredCosts, ByStageAndKind) {
  const BatchFit fit =
      fit_of({{Kind::F, 0, {1, 0, 2, 0, 0, 0, 0}}, {Kind::B, 0, {4}}, {Kind::F, 1, {0, 3, 0, 0, 0, 0, 0}}, {Kind::B, 1, {5}}});
  const std::vector<StageCosts> stages = measured_costs(fit)(padded_load({2, 8, 0}));
  const auto time = [&](std::size_t stage, Kind kind) { return stages[stage].time[static_cast<std::size_t>(kind)]; };
  EXPECT_EQ(time(0, Kind::F), 33);
  EXPECT_EQ(time(0, Kind::R), 33);
  EXPECT_EQ(time(0, Kind::B), 4);
  EXPECT_EQ(time(1, Kind::F), 6);
  EXPECT_EQ(stages[1].live, 16);
  const LoadFit ten{{10}}, six{{6}};
  const auto held_alike = [](std::vector<HeldFit> held) { return HeldFits{{Recompute::none, held}}; };
  const StageCosts held = holding(measured_costs(fit), held_alike({{ten, six, six}, {ten, ten, ten}}), true)(padded_load({2, 8, 0}))[0];
  EXPECT_EQ(held.live, 10);
  EXPECT_EQ(held.kept, 6);
  EXPECT_EQ(held.forward_bytes, 6);
  EXPECT_EQ(holding(measured_costs(fit), held_alike({{ten, six, six}, {ten, ten, ten}}), false)(padded_load({2, 8, 0}))[0].live, 16);
  // A backward that computes a quarter of the forward again, and holds six tenths.
  const HeldFits held_less = {{Recompute::none, {{ten, ten, six}, {ten, ten, ten}}},
                              {Recompute::selective, {{six, six, six, 0.25}, {ten, ten, ten}}}};
  BatchLoad less = padded_load({2, 8, 0});
  less.shape.recompute = Recompute::selective;
  for (const auto& [bytes, live] : {std::pair{true, 6.0}, {false, 0.6 * 16}}) {
    const StageCosts again = holding(measured_costs(fit), held_less, bytes)(less)[0];
    EXPECT_EQ(again.live, live);
    EXPECT_EQ(again.of(Kind::B), 4 + 0.25 * 33);
    EXPECT_EQ(again.of(Kind::F), 33);
  }
}

TEST(MeasuredCosts, Missing) {
  Costs costs;
  costs.model = "gpt";
  const auto check = [&](int stages, bool split, std::string under = "") {
    return message_of([&] { needed_fit(costs, "costs.json", {"threads", stages, split, std::move(under)}); });
  };
  const std::string hint =
      "\n  hint: penstock profile CONFIG with the same [batch], stages, mesh and backend measures them, --out costs.json";
  EXPECT_EQ(check(2, false),
            "costs.json has no times of batches that were planned one by one, with backend threads\n  it was measured for gpt" + hint);
  costs.batches["threads"] = fit_of({{Kind::F, 0, {}}, {Kind::B, 0, {}}, {Kind::F, 1, {}}});
  EXPECT_EQ(check(4, false), "costs.json has times of batches for 2 stages, and here are 4" + hint);
  EXPECT_EQ(check(2, false), "costs.json has no time of B of stage 1" + hint);
  costs.batches["threads"].actions.push_back({Kind::B, 1, {}});
  EXPECT_EQ(check(2, false), "no error");
  EXPECT_EQ(check(2, true), "costs.json has no time of W of stage 0" + hint);
  EXPECT_EQ(check(2, false, "data=2"), "costs.json has times of batches under one device for each actor, and here is data=2" + hint);
  costs.batches["threads"].under = "data=2";
  EXPECT_EQ(check(2, false, "data=2"), "no error");
  EXPECT_EQ(check(2, false), "costs.json has times of batches under data=2, and here is one device for each actor" + hint);
}

// A file of costs keeps it.
TEST(MeasuredCosts, AreReadBack) {
  Costs costs;
  costs.batches["gloo"] = {.stages = 2, .actions = {{Kind::W, 1, {1, 2, 3, 4, 5, 6, 7}}}, .beyond = 0.25, .spread = 0.01};
  const Costs read = parse_costs(print(costs), "costs.json");
  EXPECT_EQ(print(read), print(costs));
  EXPECT_EQ(read.batches.at("gloo").actions[0].per_amount[6], 7);
  std::string broken = print(costs);
  broken.replace(broken.find("7.0"), 3, "-1");
  EXPECT_EQ(message_of([&] { parse_costs(broken, "costs.json"); }),
            "costs.json: batches.gloo.actions[0].per_amount[6] is -1; it must not be negative");
}

}  // namespace
}  // namespace penstock
