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

// "w" in pieces, one on each device.
const char* const kInPieces = R"(penstock program 1
program @in_pieces {microbatches=1}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[1] "u[0:1]")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[1] "u[1:2]")
)";
const char* const kWhole = R"(penstock program 1
program @whole {microbatches=1}
task @t {scratch=0}
graph @t(%a: f32[2]) -> (f32[2]) {
  %0: f32[2] = neg(%a)
  return %0
}
device 0 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (f32[2] "u")
  run @t(%w) -> (update %w)
)";

using Names = std::vector<std::string>;

TEST(Holders, WhatAProgramUpdatesIsOutOfDateWhereOthersAloneHaveIt) {
  Holders holders;
  holders.load(1, parse_program(kUpdating));
  holders.load(2, parse_program(kReading));  // device 0 has had nothing of it
  EXPECT_EQ(holders.outdated(1), Names());
  EXPECT_EQ(holders.outdated(2), Names{"v"});
  EXPECT_TRUE(holders.is_behind("v", {0, "v"}));
  EXPECT_FALSE(holders.is_behind("v", {1, "v"}));
  EXPECT_FALSE(holders.outdated_in_all("v"));
  holders.set("v");
  EXPECT_EQ(holders.outdated(2), Names());
  holders.stepped(2);  // it updates nothing
  EXPECT_EQ(holders.outdated(1), Names());
  holders.stepped(1);
  EXPECT_EQ(holders.outdated(2), Names{"v"});
  EXPECT_FALSE(holders.is_behind("w", {0, "w"}));
  holders.moved(2);
  EXPECT_EQ(holders.outdated(2), Names());
  holders.unload(2);  // its value lies where it was
  holders.stepped(1);
  EXPECT_TRUE(holders.is_behind("v", {0, "v"}));
  holders.set_all();  // of loaded programs
  EXPECT_TRUE(holders.is_behind("v", {0, "v"}));
  holders.load(2, parse_program(kReading));
  EXPECT_EQ(holders.outdated(2), Names{"v"});
}

TEST(Holders, APartInAnotherFormIsAnother) {
  Holders holders;
  holders.load(1, parse_program(kInPieces));
  holders.load(2, parse_program(kWhole));
  EXPECT_EQ(holders.outdated(2), Names{"u"});
  EXPECT_EQ(holders.outdated(1), Names());
  holders.unload(1);
  EXPECT_EQ(holders.outdated_in_all("u"), 2u);
  EXPECT_TRUE(holders.has(2, "u"));
  EXPECT_FALSE(holders.any_has("u", {0, "u[0:1]"}));
  holders.moved(2);
  for (std::size_t d : {0u, 1u}) holders.forget("u", {d, d == 0 ? "u[0:1]" : "u[1:2]"});
  holders.stepped(2);
  holders.load(1, parse_program(kInPieces));
  EXPECT_EQ(holders.outdated(1), Names{"u"});
}

}  // namespace
}  // namespace penstock
