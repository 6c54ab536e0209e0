// SPDX-License-Identifier: Apache-2.0
// Tables under fully sharded parameters.
#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "penstock/schedule.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

std::string gathered(const std::string& csv) {
  return print(with_gathers(parse_schedule(csv, "plan.csv")));
}

// The next chunk is gathered while the present one is at work; one that comes again is dropped and gathered.
TEST(Gathers, OncePerRunAndAhead) {
  EXPECT_EQ(gathered("0F0,0F1,1F0,1F1,1I0,1I1,0I0,0I1,1W0,1W1,0W0,0W1\n"),
            "0UNSHARD,1UNSHARD,0F0,0F1,0RESHARD,1F0,1F1,1RESHARD,1UNSHARD,0UNSHARD,1I0,1I1,1RESHARD,0I0,0I1,0RESHARD,"
            "1W0,1W1,1REDUCE_GRAD,0W0,0W1,0REDUCE_GRAD\n");
}

// One stage per actor: a gather and a sum for each micro-batch, once both directions take turns.
TEST(Gathers, OneForwardOneBackward) {
  EXPECT_EQ(gathered("0F0,0F1,0B0,0F2,0B1,0B2\n"),
            "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0RESHARD,0UNSHARD,0REDUCE_GRAD,0F2,0RESHARD,0UNSHARD,0B1,0B2,0RESHARD,"
            "0REDUCE_GRAD\n");
}

// Who goes on with a stage keeps it: one gather and one sum where there is but one stage, and none between the last forward of a chain and
// its backward.
TEST(Gathers, OncePerTurn) {
  const auto kept = [](const std::string& csv) { return print(with_gathers(parse_schedule(csv, "plan.csv"), /*turns=*/true)); };
  EXPECT_EQ(kept("0F0,0F1,0B0,0F2,0B1,0B2\n"), "0UNSHARD,0F0,0F1,0B0,0F2,0B1,0B2,0RESHARD,0REDUCE_GRAD\n");
  EXPECT_EQ(kept("0F0,1F0,1B0,0B0\n"), "0UNSHARD,1UNSHARD,0F0,0RESHARD,0UNSHARD,1F0,1B0,1RESHARD,1REDUCE_GRAD,0B0,0RESHARD,0REDUCE_GRAD\n");
}

TEST(Gathers, FusedPairsStayTogether) {
  EXPECT_EQ(gathered("0F0,1F0,(0F1;1B0)OVERLAP_F_B,(1F1;0B0)OVERLAP_F_B,1B1,0B1\n"),
            "0UNSHARD,1UNSHARD,0F0,0RESHARD,0UNSHARD,1F0,1RESHARD,1UNSHARD,(0F1;1B0)OVERLAP_F_B,0RESHARD,1RESHARD,1UNSHARD,0UNSHARD,"
            "1REDUCE_GRAD,(1F1;0B0)OVERLAP_F_B,1RESHARD,0RESHARD,1UNSHARD,0UNSHARD,0REDUCE_GRAD,1B1,1RESHARD,1REDUCE_GRAD,0B1,0RESHARD,"
            "0REDUCE_GRAD\n");
}

TEST(Gathers, ReduceOnceBehindAPairThatEndsTwoRuns) {
  const std::string table = gathered("0F0,1F0,1I0,0F1,1F1,1I1,(1W0;1W1)OVERLAP_F_B,0B0,0B1\n");
  EXPECT_NE(table.find("(1W0;1W1)OVERLAP_F_B,1REDUCE_GRAD,0B0"), std::string::npos) << table;
}

// Tables with replicas, W elsewhere, recomputation and offloading stay valid with gathers, as with_gathers leaves those that it made, and
// no actor ever has more than two stages.
TEST(Gathers, OfRandomTables) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    test::Random random(seed);
    const StageShape shape = test::random_shape(random, {.no_backward = 0.2, .no_parameters = 0.2});
    Schedule schedule = test::random_schedule(random, shape, test::draw(random, 1, 4), test::draw(random, 1, 5),
                                              {.mixed_split = true, .foreign_weight = 0.2, .replica = 0.2});
    if (test::coin(random, 0.5)) schedule = test::with_extras(random, std::move(schedule), shape);
    const Schedule table = with_gathers(schedule);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(table));
    EXPECT_EQ(test::message_of([&] { validate(table, shape); }), "no error");
    EXPECT_EQ(with_gathers(table).actors, table.actors);
    for (const auto& row : table.actors) {
      int here = 0;
      for (const Action& action : row) {
        here += (action.kind == Kind::UNSHARD) - (action.kind == Kind::RESHARD);
        EXPECT_LE(here, 2);
      }
      EXPECT_EQ(here, 0);
    }
  }
}

}  // namespace
}  // namespace penstock
