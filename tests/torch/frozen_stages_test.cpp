// SPDX-License-Identifier: Apache-2.0
// Frozen stages in the idle time of the step before, run: the same training, whichever actor computes them.
#include <gtest/gtest.h>

#include "support/random_schedule.h"
#include "torch/partly_frozen.h"

namespace penstock {
namespace {

using namespace test;

TEST(FrozenStages, TrainAsOnOneActor) {
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe", "interleaved-1f1b"})
    for (const int actors : {1, 2, 3})
      for (const int window : {1, 2, 6}) {
        const int chunks = std::string(schedule) == "interleaved-1f1b" ? 2 : 1, trained = actors * chunks;
        const std::vector<double> frozen = {0.5, 1.25};
        const Schedule table =
            make_schedule(schedule, {.actors = actors, .microbatches = 6, .window = window, .chunks = chunks, .frozen = frozen});
        const Trained got = run(2, trained, table), expected = run(2, trained, one_actor(trained, 6, frozen));
        expect_near(got, expected, concat(schedule, ", ", actors, " actors, a window of ", window));
        for (int s = 0; s < 2; ++s) EXPECT_EQ(got.weights[s], values<double>(numbers({3, 3}, s))) << "w" << s;
        EXPECT_NE(got.weights[2], values<double>(numbers({3, 3}, 2)));
      }
}

// One micro-batch's frozen forwards may be anywhere.
TEST(FrozenStages, AnyActorMayComputeThem) {
  for (int seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    std::vector<double> frozen(draw(random, 1, 3));
    for (double& time : frozen) time = draw(random, 1, 12) / 4.0;
    const int actors = draw(random, 1, 4), microbatches = draw(random, 1, 5), window = std::vector{1, 2, 3}[draw(random, 0, 2)];
    const Schedule table = make_schedule("1f1b", {.actors = actors, .microbatches = microbatches, .window = window, .frozen = frozen});
    const int f = static_cast<int>(frozen.size());
    expect_near(run(f, actors, table, {.optimiser = "sgd"}), run(f, actors, one_actor(actors, microbatches, frozen), {.optimiser = "sgd"}),
                concat("seed ", seed, ", ", print(table)));
  }
}

// A frozen parameter has a copy on each actor that computes with it, and nothing else: no moments, no gradients.
TEST(FrozenStages, HaveNoVersions) {
  const PartlyFrozen model(1, 2);
  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 4, .window = 3, .frozen = {1}});
  const Program program = compile(training_step(model, {8, 0, 4}, {.clip = 0}), table);
  EXPECT_EQ(print(program).find("w0@"), std::string::npos);
  EXPECT_EQ(print(program).find("first:w0"), std::string::npos);
}

}  // namespace
}  // namespace penstock
