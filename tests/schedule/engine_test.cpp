// SPDX-License-Identifier: Apache-2.0
// The engine under policies of its own: whatever a policy chooses, the table is valid and its times are the table simulator's.
#include "schedule/engine.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/numbers.h"
#include "base/text.h"
#include "support/rounds.h"

namespace penstock {
namespace {

// Takes any action that is ready.
struct AnyReady {
  const EngineWork& work;
  std::mt19937_64& random;
  std::map<std::int32_t, std::vector<Action>> of_actor{};
  std::int64_t ended_actions = 0;

  void ready(const Action& action) { of_actor[work.actor_of(action)].push_back(action); }
  void ended(std::int32_t, const Action&) { ++ended_actions; }
  void stuck() const { FAIL() << "everything may run"; }
  std::optional<Action> next(std::int32_t actor) {
    std::vector<Action>& ready = of_actor[actor];
    if (ready.empty()) return {};
    std::swap(ready[random() % ready.size()], ready.back());
    const Action action = ready.back();
    ready.pop_back();
    return action;
  }
};

// Stages that feed some of the later ones, on random actors, in one or two ways; micro-batches of three classes.
EngineWork random_work(std::mt19937_64& random, TableCosts& costs) {
  EngineWork work;
  work.costs = &costs;
  const std::int32_t stages = 1 + static_cast<std::int32_t>(random() % 6);
  work.shape = chain(stages);
  work.actor_count = 1 + static_cast<std::int32_t>(random() % 4);
  work.microbatches = 1 + static_cast<std::int32_t>(random() % 6);
  work.split = random() % 2 == 0;
  work.actors.assign(1 + random() % 2, {});
  for (std::int32_t s = 0; s < stages; ++s) {
    auto& before = work.shape.predecessors[static_cast<std::size_t>(s)];
    before.clear();
    for (std::int32_t b = 0; b < s; ++b)
      if (random() % 2 == 0) before.push_back(b);
    for (auto& way : work.actors) way.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(work.actor_count)));
  }
  costs.stages.resize(at(3 * stages));
  for (StageCosts& stage : costs.stages) {
    for (double& time : stage.time) time = static_cast<double>(random() % 8) / 4;
    stage.forward_bytes = static_cast<double>(random() % 3);
    stage.backward_bytes = static_cast<double>(random() % 3);
  }
  for (std::int32_t m = 0; m < work.microbatches; ++m) costs.first.push_back(static_cast<std::int32_t>(random() % 3) * stages);
  return work;
}

TEST(Engine, AnyPolicyMakesAValidTable) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    std::mt19937_64 random(seed);
    TableCosts costs;
    EngineWork work = random_work(random, costs);
    Network network;
    if (random() % 2 == 0) {
      network.link = {.latency = 0.5, .bandwidth = 2};
      work.arrival = arrivals_over(network);
    } else {  // W anywhere
      work.actor_of_half = [&](Kind half, std::int32_t stage, std::int32_t microbatch) {
        return half == Kind::I ? work.actor_of(stage, microbatch) : (stage + microbatch) % work.actor_count;
      };
    }
    AnyReady policy{work, random};
    const Listed listed = run_engine(work, policy);
    validate(listed.schedule, work.shape, work.microbatches);
    std::int64_t actions = 0;
    for (const auto& row : listed.schedule.actors) actions += static_cast<std::int64_t>(row.size());
    EXPECT_EQ(listed.makespan, time_table(listed.schedule, work.shape, costs, {.network = network}).makespan);
    EXPECT_EQ(policy.ended_actions, actions);
  }
}

// A policy that leaves an actor idle for good is told so.
TEST(Engine, TellsAPolicyThatNothingGoesOn) {
  struct Idle {
    bool told = false;
    void ready(const Action&) {}
    void ended(std::int32_t, const Action&) {}
    void stuck() { told = true; }
    std::optional<Action> next(std::int32_t) { return {}; }
  } policy;
  const EngineWork work{.shape = chain(1), .actors = {{0}}};
  EXPECT_EQ(run_engine(work, policy).makespan, 0);
  EXPECT_TRUE(policy.told);
}

}  // namespace
}  // namespace penstock
