// SPDX-License-Identifier: Apache-2.0
// Random valid tables are accepted; each random defect is rejected with its place.
#include <gtest/gtest.h>

#include <regex>

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

struct Case {
  StageShape shape;
  Schedule schedule;
  int actors, microbatches;
};

Case random_case(Random& random) {
  Case c;
  c.shape = test::random_shape(random, {.no_backward = 0.2, .no_parameters = 0.2});
  c.actors = draw(random, 1, 4);
  c.microbatches = draw(random, 1, 5);
  c.schedule = test::random_schedule(random, c.shape, c.actors, c.microbatches,
                                     {.mixed_split = test::coin(random, 0.5), .foreign_weight = 0.2, .foreign_input = 0.2, .replica = 0.2});
  return c;
}

TEST(RandomTable, IsValidAndSurvivesItsCsv) {
  for (std::uint64_t seed = 0; seed < test::rounds(500u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Case c = random_case(random);
    ASSERT_EQ(message_of([&] { validate(c.schedule, c.shape, c.microbatches); }), "no error") << print(c.schedule);
    const Schedule read = parse_schedule(print(c.schedule), "plan.csv");
    EXPECT_EQ(read.actors, c.schedule.actors);
    EXPECT_EQ(message_of([&] { validate(read, c.shape); }), "no error");
    // No table is faster than its work on the busiest actor, none slower than all work in a row.
    const TableTime time = time_table(c.schedule, c.shape, uniform_costs(c.schedule.stages()));
    double total = 0;
    for (double busy : time.busy) {
      EXPECT_LE(busy, time.makespan);
      total += busy;
    }
    EXPECT_LE(time.makespan, total);
  }
}

TEST(RandomTable, BrokenOnesAreRejectedWithTheirPlace) {
  const std::regex place("^plan\\.csv:[0-9]+:[0-9]+: ");
  for (std::uint64_t seed = 0; seed < test::rounds(3000u); ++seed) {
    Random random(seed);
    const Case c = random_case(random);
    const test::BrokenTable broken = test::break_table(random, c.schedule, c.shape);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << broken.kind << "\n" << broken.csv);
    const std::string message = message_of([&] { validate(parse_schedule(broken.csv, "plan.csv"), c.shape, c.microbatches); });
    EXPECT_TRUE(std::regex_search(message, place)) << message;
    EXPECT_NE(message.find(broken.expected), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace penstock
