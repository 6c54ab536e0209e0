// SPDX-License-Identifier: Apache-2.0
#include "schedule/in_one_row.h"

#include <gtest/gtest.h>

#include <map>

#include "schedule/versions.h"
#include "support/errors.h"

namespace penstock {
namespace {

TEST(InOneRow, EachRowKeepsItsOrder) {
  const Schedule table = parse_schedule("0F0,0F1,0B0,0U0,0F2,0B1,0U1,0B2,0U2\n1F0,1B0,1U0,1F1,1B1,1U1,1F2,1B2,1U2\n", "table.csv");
  const Schedule row = in_one_row(table, shape_of(table));
  EXPECT_EQ(print(row), "0F0,0F1,1F0,1B0,1U0,0B0,0U0,1F1,1B1,1U1,0F2,0B1,0U1,1F2,1B2,1U2,0B2,0U2\n");
  validate(row, shape_of(table));
}

TEST(InOneRow, WhatNeverRunsIsNamed) {
  const Schedule table = parse_schedule("0B0,0F0\n1F0,1B0\n", "table.csv");
  EXPECT_EQ(test::message_of([&] { in_one_row(table, chain(2)); }),
            "schedule table.csv: 0B0 of actor 0 never gets what it needs\n  stages feed each other in a way that the table is not for");
}

// An action reads the same whoever else has a row.
TEST(InOneRow, ReadsTheSameVersions) {
  for (const char* name : {"pipedream", "pipedream-2bw", "xpipe", "pipeoptim"}) {
    const Schedule table = make_schedule(name, {.actors = 4, .microbatches = 4, .window = 5});
    const Schedule row = in_one_row(table, shape_of(table));
    const auto of = [](const Schedule& schedule) {
      std::map<std::string, std::pair<int, int>> out;
      const auto reads = read_versions(schedule);
      for (std::size_t a = 0; a < reads.size(); ++a)
        for (std::size_t i = 0; i < reads[a].size(); ++i) out[text(schedule.actors[a][i])] = {reads[a][i].version, reads[a][i].ahead};
      return out;
    };
    EXPECT_EQ(of(row), of(table)) << name;
  }
}

}  // namespace
}  // namespace penstock
