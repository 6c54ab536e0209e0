// SPDX-License-Identifier: Apache-2.0
// Whose value of a state is the present one, where programs do not have it on the same devices.
#include "driver/holders.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// "v" on device 1, which a run updates, and "w" on both.
const char* const kUpdating = R"(penstock program 1
program @updating {microbatches=1}
task @t {scratch=0}
graph @t(%a: f32[1]) -> (f32[1]) {
  %0: f32[1] = neg(%a)
  return %0
}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[1] "w")
device 1 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (f32[1] "v")
  slot %w copy @64 (f32[1] "w")
  run @t(%v) -> (update %v)
)";
// "v" on device 0, as nobody reads it.
const char* const kReading = R"(penstock program 1
program @reading {microbatches=1}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %v state @0 (f32[1] "v")
  slot %w state @64 (f32[1] "w")
device 1 {state_bytes=0, step_bytes=0, scratch_bytes=0}
)";

using Names = std::vector<std::string>;

TEST(Holders, WhatAProgramUpdatesIsOutOfDateWhereOthersAloneHaveIt) {
  Holders holders;
  holders.load(1, parse_program(kUpdating));
  EXPECT_EQ(holders.outdated(), Names());
  holders.load(2, parse_program(kReading));  // device 0 has had nothing of it
  EXPECT_EQ(holders.outdated(), Names{"v"});
  EXPECT_EQ(holders.outdated(1), Names());
  EXPECT_EQ(holders.outdated(2), Names{"v"});
  EXPECT_EQ(holders.behind("v"), std::set<std::size_t>{0});
  holders.set("v");
  EXPECT_EQ(holders.outdated(), Names());
  holders.stepped(2);  // it updates nothing
  EXPECT_EQ(holders.outdated(), Names());
  holders.stepped(1);
  EXPECT_EQ(holders.behind("v"), std::set<std::size_t>{0});
  EXPECT_EQ(holders.behind("w"), std::set<std::size_t>());
  holders.set_all();
  EXPECT_EQ(holders.outdated(), Names());
  holders.unload(2);  // its value lies where it was
  holders.stepped(1);
  EXPECT_EQ(holders.behind("v"), std::set<std::size_t>{0});
}

}  // namespace
}  // namespace penstock
