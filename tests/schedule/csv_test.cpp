// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/text.h"
#include "penstock/schedule.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

std::string refused(const std::string& cell) {
  return message_of([&] { parse_schedule("0F0\n0F1," + cell + "\n", "plan.csv"); });
}

TEST(ScheduleCsv, PrintsWhatItReads) {
  const std::string csv = "0F0,0F1,0B0\n\n1UNSHARD,(1F0;2I3)OVERLAP_F_B,2W3,1REDUCE_GRAD\n3F5,2x4F0,1R0,1U,1OFFLOAD2,1RELOAD2,1RESHARD\n";
  EXPECT_EQ(print(parse_schedule(csv, "plan.csv")), csv);
}

TEST(ScheduleCsv, ReadsEachPart) {
  const Schedule schedule = parse_schedule("3F5,2x4F0,(0F1;1B2)OVERLAP_F_B,4U\n", "plan.csv");
  const std::vector<Action> expected = {{3, Kind::F, 5}, {2, Kind::F, 0, 4}, {0, Kind::F, 1, 1, true}, {1, Kind::B, 2}, {4, Kind::U, -1}};
  EXPECT_EQ(schedule.actors, std::vector<std::vector<Action>>{expected});
  EXPECT_EQ(schedule.cells, (std::vector<std::vector<std::int32_t>>{{1, 2, 3, 3, 4}}));
  EXPECT_EQ(schedule.stages(), 5);
  EXPECT_EQ(schedule.microbatches(), 6);
}

// Blank cells are torch's idle steps; "" is how Python's writer prints a row whose only cell is empty; rows end in \r\n.
TEST(ScheduleCsv, SkipsIdleCells) {
  const Schedule schedule = parse_schedule(",,0F0,, 0F1 ,\r\n\"\"\r\n,\"1F0\",", "plan.csv");
  EXPECT_EQ(print(schedule), "0F0,0F1\n\n1F0\n");
  EXPECT_EQ(schedule.cells, (std::vector<std::vector<std::int32_t>>{{3, 5}, {}, {2}}));
}

TEST(ScheduleCsv, UnreadableCellsAreNamed) {
  EXPECT_EQ(refused("2Q1"),
            "plan.csv:2:2: cannot read \"2Q1\" as an action\n"
            "  there is no kind \"Q\"\n"
            "  an action is a stage, a kind and a micro-batch, such as 2F0 or 3B5; the cells of a row are its actor's actions in order\n"
            "  hint: kinds are F B I W R U UNSHARD RESHARD REDUCE_GRAD OFFLOAD RELOAD SEND_F RECV_F SEND_B RECV_B");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"F0", "it does not start with the number of a stage"},
      {"-1F0", "it does not start with the number of a stage"},
      {"99999999999F0", "it does not start with the number of a stage"},
      {"0", "a kind is missing"},
      {"0F", "the micro-batch is missing after F"},
      {"0F-1", "after F stands no micro-batch"},
      {"0F99999999999", "after F stands no micro-batch"},
      {"0x2F2147483647", "the micro-batch is too large"},
      {"0F1 0B1", "\" 0B1\" follows the action"},
      {"0.F1", "a slice's number is missing after '.'"},
      {"0x0F1", "how many micro-batches is missing after 'x'"},
      {"0OFFLOAD", "the micro-batch is missing after OFFLOAD"},
      {"0RESHRAD", "did you mean RESHARD?"},
      {"(0F1;1B2)", "a fused pair is written (0F3;1B2)OVERLAP_F_B"},
      {"(0F1;1B2", "a fused pair is written (0F3;1B2)OVERLAP_F_B"},
      {"()OVERLAP_F_B", "it does not start with the number of a stage"},
      {"(0F1;1SEND_F1)OVERLAP_F_B", "only F, B, I and W can be fused"},
      {std::string(200, '9'), "\"9999999999999999999999999999999999999...\""},
  };
  for (const auto& [cell, reason] : cases) {
    const std::string message = refused(cell);
    EXPECT_EQ(message.find("plan.csv:2:2: cannot read"), 0u) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }
}

TEST(ScheduleCsv, StagesBeyondTheTableAreRefused) {
  EXPECT_EQ(refused("2147483647F0"),
            "plan.csv:2:2: 2147483647F0 names stage 2147483647 of a table with 3 actions\n  stages are numbered from 0 without gaps");
}

TEST(ScheduleCsv, EmptyTableIsRefused) {
  for (const char* csv : {"", "\n\n", ",,\n"}) {
    EXPECT_EQ(message_of([&] { parse_schedule(csv, "plan.csv"); }),
              "plan.csv:1:1: the table has no action\n  a schedule has one row per actor and one action per cell\n"
              "  hint: print one with `penstock schedule 1f1b --actors 2 --microbatches 4`");
  }
}

}  // namespace
}  // namespace penstock
