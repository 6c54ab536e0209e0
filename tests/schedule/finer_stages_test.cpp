// SPDX-License-Identifier: Apache-2.0
#include "schedule/finer_stages.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "schedule/versions.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

TEST(FinerStages, GoForwardInOrderAndBackAgainstIt) {
  const Schedule table = parse_schedule("0F0,0B0,0U0,0@0F1,0B1,0U1\n1F0,1B0,1U0,1@0F1,1B1,1U1\n", "table.csv");
  const Schedule finer = with_finer_stages(table, {1, 2});
  EXPECT_EQ(print(finer), "0F0,0B0,0U0,0@0F1,0B1,0U1\n1F0,2F0,2B0,1B0,2U0,1U0,1@0F1,2@0F1,2B1,1B1,2U1,1U1\n");
  validate(finer, chain(3));
  const Schedule pair = parse_schedule("0F0,0R0,1F0,(1B0;0B0)OVERLAP_F_B\n", "pair.csv");
  EXPECT_EQ(print(with_finer_stages(pair, {2, 1})), "0F0,1F0,0R0,1R0,2F0,2B0,1B0,0B0\n");
}

// Whatever the cut, an action is as late as that of the stage which it is a part of.
TEST(FinerStages, AreValidAndAsLate) {
  for (int seed = 0; seed < test::rounds(200); ++seed) {
    test::Random random(seed);
    const int actors = test::draw(random, 1, 4), microbatches = test::draw(random, 1, 4);
    const char* names[] = {"1f1b", "zb-h1", "gpipe", "pipedream", "hetpipe"};
    const Schedule table = make_schedule(names[test::draw(random, 0, 4)],
                                         {.actors = actors, .microbatches = microbatches, .window = test::draw(random, 1, 5)});
    std::vector<int> sizes;
    int stages = 0;
    for (int s = 0; s < actors; ++s) stages += sizes.emplace_back(test::draw(random, 1, 3));
    const Schedule finer = with_finer_stages(table, sizes);
    SCOPED_TRACE(concat("seed ", seed, "\n", print(finer)));
    validate(finer, chain(stages), table.microbatches());
    for (int actor = 0; actor < actors; ++actor) EXPECT_EQ(staleness(finer, actor), staleness(table, actor));
    EXPECT_EQ(missing_of_others(finer, 1), missing_of_others(table, 1));
  }
}

TEST(FinerStages, HaveASizeEach) {
  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 2});
  for (const auto& [sizes, text] : {std::pair(std::vector{3}, "3"), {{2, 0}, "2, 0"}})
    EXPECT_EQ(
        test::message_of([&] { with_finer_stages(table, sizes); }),
        concat("schedule 1f1b has 2 stages, and their sizes are [", text, "]\n  hint: give each stage of the table a size of 1 or more"));
  Schedule frozen = table, two_chains = table;
  frozen.forward_times = {1};
  two_chains.predecessors = {{}, {}};
  for (const Schedule& other : {sliced(table, 2), frozen, two_chains})
    EXPECT_EQ(test::message_of([&] { with_finer_stages(other, {1, 2}); }),
              "schedule 1f1b has slices, stages that are no chain or stages that are not trained\n"
              "  only a chain of whole stages that train is cut finer\n  hint: use a schedule without them");
}

}  // namespace
}  // namespace penstock
