// SPDX-License-Identifier: Apache-2.0
#include "report/schedule_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "base/text.h"
#include "support/paths.h"

namespace penstock {
namespace {

TEST(ScheduleText, DrawsIdleSlotsAndLongActions) {
  EXPECT_EQ(draw(make_schedule("1f1b", {.actors = 2, .microbatches = 2}), chain(2)),
            "actor 0 | F0 F1 .  .  B0--- .  B1---\n"
            "actor 1 | .  F0 B0--- F1 B1---\n"
            "time 9, bubble 33.3 %, live 2 1\n");
}

TEST(ScheduleText, NamesStagesWhereAnActorHasSeveral) {
  const Schedule schedule = parse_schedule("0x2F0,1F0,1F1,1x2B0,0B0,0I1,0W1,0U\n\n", "plan.csv");
  EXPECT_EQ(draw(schedule, chain(2)),
            "actor 0 | 0x2F0------ 1F0   1F1   1x2B0------------------ 0B0-------- 0I1   0W1\n"
            "actor 1 |\n"
            "time 12, bubble 50.0 %, live 4 0\n");
}

TEST(ScheduleText, NamesSlices) {
  EXPECT_EQ(draw(make_schedule("terapipe", {.actors = 2, .microbatches = 1, .slices = 2}), sliced(chain(2), 2)),
            "actor 0 | 0.0F0 0.1F0 .     .     .     0.1B0------ 0.0B0------\n"
            "actor 1 | .     1.0F0 1.1F0 1.1B0------ 1.0B0------\n"
            "time 9, bubble 33.3 %, live 2 2\n");
}

TEST(ScheduleText, WhatTakesNoTimeTakesNoSpace) {
  const Schedule schedule = parse_schedule("0UNSHARD,0F0,0B0,0REDUCE_GRAD\n", "plan.csv");
  EXPECT_EQ(draw(schedule, chain(1)), "actor 0 | F0 B0---\ntime 3, bubble 0.0 %, live 1\n");
}

// The drawings in the generators' head comments are the tool's.
TEST(ScheduleText, CommentsShowWhatTheToolDraws) {
  const std::regex command(
      R"(//   penstock schedule (\S+) --actors (\d+) --microbatches (\d+)(?: --chunks (\d+))?(?: --slices (\d+))?(?: --unit (\d+))?(?: --head-shards (\d+))?(?: --window (\d+))?( --forward-only)?( --self-conditioning)? --show)");
  const std::filesystem::path folder = std::filesystem::path(test::tests_folder()) / ".." / "src" / "order" / "schedule";
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path());
    std::string line;
    while (std::getline(in, line)) {
      std::smatch found;
      if (!std::regex_match(line, found, command)) continue;
      names.insert(found[1]);
      const ScheduleOptions options{.actors = std::stoi(found[2]),
                                    .microbatches = std::stoi(found[3]),
                                    .window = found[8].matched ? std::stoi(found[8]) : 1,
                                    .chunks = found[4].matched ? std::stoi(found[4]) : 1,
                                    .slices = found[5].matched ? std::stoi(found[5]) : 1,
                                    .head_shards = found[7].matched ? std::stoi(found[7]) : 1,
                                    .forward_only = found[9].matched,
                                    .self_conditioning = found[10].matched,
                                    .unit = found[6].matched ? std::stoi(found[6]) : 0};
      const Schedule schedule = make_schedule(found[1].str(), options);
      const std::string drawn = draw(schedule, shape_of(schedule));
      std::string comment;
      while (std::getline(in, line) && line.starts_with("//   ")) comment += line.substr(5) + "\n";
      EXPECT_EQ(comment, drawn) << "in " << file.path();
    }
  }
  EXPECT_EQ(names.size(), schedules().size());
}

}  // namespace
}  // namespace penstock
