// SPDX-License-Identifier: Apache-2.0
// Tables of micro-batches that differ in their stages.
#include <gtest/gtest.h>

#include "penstock/schedule.h"

#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

std::string problem_of(const char* csv) {
  const Schedule schedule = parse_schedule(csv, "table.csv");
  StageShape shape = chain(2);
  shape.idle = {{false, true}, {false, false}};  // stage 0 has nothing to do for micro-batch 1
  return message_of([&] { validate(schedule, shape, 2); });
}

TEST(Idle, HasNoActions) {
  EXPECT_EQ(problem_of("0F0,0B0\n1F1,1B1,1F0,1B0\n"), "no error");
  EXPECT_EQ(problem_of("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n"),
            "table.csv:1:2: 0F1 is of a micro-batch for which stage 0 has nothing to do\n  hint: leave it out");
}

TEST(Idle, AllElseIsThere) {
  EXPECT_EQ(problem_of("0F0,0B0\n1F0,1B0\n"),
            "table.csv:2:1: 1F1 is missing near 1F0\n"
            "  stage 1 must run forward once for each of 2 micro-batches; the table has 1 such forward\n"
            "  hint: add 1F1, or give the model as many stages and micro-batches as the table has");
  EXPECT_EQ(problem_of("0F0\n1F0,1B0,1F1,1B1\n"),
            "table.csv:1:1: 0F0 has no backward\n  0B0 or 0I0 is missing\n  hint: add it to row 1, where 0F0 stands");
}

}  // namespace
}  // namespace penstock
