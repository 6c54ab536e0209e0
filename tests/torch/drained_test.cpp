// SPDX-License-Identifier: Apache-2.0
// Windows whose steps are drained, run: updates wait for all stages, and train as one step after the other does.
#include "schedule/drained.h"
#include "penstock/error.h"
#include "schedule/generators.h"
#include "schedule/versions.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "torch/partly_frozen.h"

namespace penstock {
namespace {

using namespace test;

constexpr const char* kNone = "no error";

struct Named {
  const char* name;
  TrainOptions options;
};
const std::vector<Named> kWaiting = {{"clipped", {.clip = 0.05}},
                                     {"tied", {.optimiser = "sgd", .tied = true}},
                                     {"clipped and tied", {.clip = 0.05, .tied = true}},
                                     {"validated", {.clip = 0.05, .tied = true, .validated = true}}};

TEST(DrainedWindows, TrainAsStepAfterStep) {
  EXPECT_NE(run(0, 2, one_actor(2, 4, {}), {.clip = 0.05}).weights, run(0, 2, one_actor(2, 4, {})).weights);  // it does clip
  for (const char* schedule : {"nestpipe", "1f1b", "zb-h1", "gpipe", "interleaved-1f1b", "interleaved-zb"})
    for (const int actors : {1, 2, 4})
      for (const auto& [name, options] : kWaiting) {
        const int chunks = std::string(schedule).starts_with("interleaved") ? 2 : 1, trained = actors * chunks;
        const Trained expected = run(0, trained, one_actor(trained, 4, {}), options);
        for (const int window : {1, 2, 6}) {
          SCOPED_TRACE(concat(schedule, ", ", actors, " actors, ", name, ", a window of ", window));
          const Schedule table = make_schedule(schedule, {.actors = actors, .microbatches = 4, .window = window, .chunks = chunks});
          const Trained got = run(0, trained, table, options);
          expect_near(got, expected, "sequential");
          TrainOptions once = options;
          once.validated = false;
          const Trained steps = run(0, trained, one_step(table, 0), once);
          EXPECT_EQ(got.weights, steps.weights);
          EXPECT_EQ(got.losses, steps.losses);
        }
      }
}

TEST(DrainedWindows, OfDevicesThatShareMicrobatches) {
  for (const auto& [name, options] : kWaiting)
    for (const int zero : {0, 1}) {
      TrainOptions shared = options;
      shared.devices = 2;
      shared.zero = zero;
      const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 3, .window = 3});
      expect_near(run(0, 2, table, shared), run(0, 2, one_actor(2, 3, {}), options), concat(name, ", zero ", zero));
    }
}

// A window of drawn steps, all in turn on each actor, of which some actions then go back in their rows, as far as the table stays valid.
Schedule drawn(Random& random, const StageShape& shape, int actors, int microbatches, int steps, bool only_frozen) {
  Schedule table = repeated(random_schedule(random, shape, actors, microbatches), steps);
  for (int tries = 0; tries < 12; ++tries) {
    std::vector<Action>& row = table.actors[draw(random, 0, actors - 1)];
    if (row.empty()) continue;
    const int from = draw(random, 0, static_cast<int>(std::ssize(row)) - 1), to = draw(random, 0, from);
    if (only_frozen && shape.has_backward[row[from].stage]) continue;
    const std::vector<Action> before = row;
    std::rotate(row.begin() + to, row.begin() + from, row.begin() + from + 1);
    try {
      validate(table, shape, microbatches * steps);
    } catch (const Error&) {
      row = before;
    }
  }
  return table;
}

TEST(DrainedWindows, OfDrawnTables) {
  int moved = 0;
  for (int seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const int frozen = draw(random, 0, 2), trained = draw(random, 1, 4), microbatches = draw(random, 1, 3), steps = draw(random, 2, 3);
    StageShape shape = chain(frozen + trained);
    for (int s = 0; s < frozen; ++s) shape.has_backward[s] = false;
    const Schedule table = drawn(random, shape, draw(random, 1, 4), microbatches, steps, /*only_frozen=*/true);
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    for (std::int32_t last = 0; const Action& action : table.actors[0]) {
      moved += action.microbatch / microbatches < last;
      last = action.microbatch / microbatches;
    }
    const auto& [name, options] = kWaiting[draw(random, 0, 3)];
    expect_near(run(frozen, trained, table, options),
                run(frozen, trained, one_actor(trained, microbatches, std::vector<double>(frozen, 1)), options), name);
  }
  EXPECT_GT(moved, 20);
}

// Whatever the table: it is refused for an action that reads what waits, or trains as step after step does.
TEST(DrainedWindows, OtherTablesAreRefused) {
  int refused = 0, trained_ones = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const int trained = draw(random, 1, 3), microbatches = draw(random, 1, 2), steps = draw(random, 2, 3);
    const int actors = draw(random, 2, 3);
    const Schedule table = coin(random, 0.5) ? random_window(random, chain(trained), actors, microbatches, steps)
                                             : drawn(random, chain(trained), actors, microbatches, steps, /*only_frozen=*/false);
    const auto works = [](const std::vector<Action>& row) { return !row.empty(); };
    if (std::ranges::count_if(table.actors, works) == 1) continue;  // nothing waits
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    const std::string late = message_of([&] { check_drained(table, chain(trained), "why"); });
    const std::string message = message_of([&] {
      expect_near(run(0, trained, table, {.clip = 0.05, .tied = true}),
                  run(0, trained, one_actor(trained, microbatches, {}), {.clip = 0.05, .tied = true}), "drawn");
    });
    EXPECT_EQ(message == kNone, late == kNone) << message << late;
    ++(message == kNone ? trained_ones : refused);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(trained_ones, 10);
}

TEST(DrainedWindows, SayWhatIsNotDrained) {
  const auto refused = [](const std::string& csv, const TrainOptions& options) {
    return message_of([&] { program_of(0, 2, parse_schedule(csv, "t.csv"), options); });
  };
  const std::string hint =
      "\n  hint: neither clip (--set clip=0) nor read a parameter on several actors (--set tied=0), or let each step end before the next "
      "begins, as any schedule of one step does: --schedule 1f1b --window 2";
  EXPECT_EQ(refused("0F0,0F1,0B0,0U0,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n", {.clip = 1}),
            "t.csv:1:2: 0F1 reads version 0 of its stage in step 1\n"
            "  an update of \"w0\" waits for other actors, whose gradients it or the norm that clips it sums" +
                hint);
  EXPECT_EQ(refused("0F0,0F1,0B0,0U0,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n", {.tied = true}),
            "t.csv:1:2: 0F1 reads version 0 of its stage in step 1\n"
            "  \"w0\" is read by stages on several actors, and each update is for all" +
                hint);
}

}  // namespace
}  // namespace penstock
