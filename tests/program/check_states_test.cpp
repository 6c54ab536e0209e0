// SPDX-License-Identifier: Apache-2.0
// States whole and in pieces: every message of check_states() that is about pieces.
#include <gtest/gtest.h>

#include "base/text.h"
#include "program/samples.h"
#include "program/verify.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::with;

// "w" in three pieces on two devices, one of which copies the whole of it, the other a range.
std::string in_pieces() {
  return R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=192, step_bytes=0, scratch_bytes=0}
  slot %a state @0 (f32[4] "w[0:4]", f32[2] "w[4:6]")
  slot %c copy @128 (f32[3,3] "w")
device 1 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %b state @0 (f32[3] "w[6:9]")
  slot %d copy @64 (f32[5] "w[2:7]")
)";
}

std::string verdict(const std::string& text) {
  const Program program = parse_program(text);
  return message_of([&] { verify(program, {}); });
}

TEST(CheckStates, PiecesTileATensor) {
  EXPECT_EQ(verdict(in_pieces()), "no error");
  EXPECT_EQ(print(parse_program(in_pieces())), in_pieces());
}

TEST(CheckStates, APieceHasItsElementsInOneDimension) {
  EXPECT_EQ(verdict(with(in_pieces(), "f32[2] \"w[4:6]\"", "f32[3] \"w[4:6]\"")),
            "device 0: slot %a does not fit state \"w[4:6]\"\n  its part 1 is f32[3]; the piece is f32[2]");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "f32[5,1] \"w[2:7]\"")),
            "device 1: slot %d does not fit state \"w[2:7]\"\n  its part 0 is f32[5,1]; the piece is f32[5]");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "f32[0] \"w[2:2]\"")),
            "device 1: slot %d: state \"w[2:2]\" names no piece of a tensor\n  hint: a piece is tensor[begin:end], with 0 <= begin < end");
}

TEST(CheckStates, EachElementHasOneOwner) {
  const std::string hint = "\n  hint: make all but one of them a copy";
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3] \"w[6:9]\"", "f32[4] \"w[5:9]\"")),
            "state \"w\" has two owners\n  device 0 has w[4:6], device 1 has w[5:9] (slot %b)" + hint);
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3] \"w[6:9]\"", "f32[9] \"w\"")),
            "state \"w\" has two owners\n  device 0 has w[0:4], device 1 has w (slot %b)" + hint);
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3] \"w[6:9]\"", "f32[2] \"w[7:9]\"")), "state \"w\": nobody owns its elements [6:7]");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[4] \"w[0:4]\"", "f32[3] \"w[1:4]\"")), "state \"w\": nobody owns its elements [0:1]");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3] \"w[6:9]\"", "f64[3] \"w[6:9]\"")),
            "state \"w\" has pieces of two dtypes\n  w[4:6] is of f32, w[6:9] of f64");
}

// "w" of three rows of four columns, split between two devices, of which the second has its columns in two ranges. Each copies some of what
// the other has.
std::string in_columns() {
  return R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %a state @0 (f32[3,2] "w[0:2/4]")
  slot %c copy @64 (f32[3,2] "w[2:4/4]")
device 1 {state_bytes=192, step_bytes=0, scratch_bytes=0}
  slot %b state @0 (f32[2] "w[2:4/4][0:2]", f32[4] "w[2:4/4][2:6]")
  slot %d copy @128 (f32[3,4] "w")
)";
}

TEST(CheckStates, PiecesWithStridesTileATensor) {
  EXPECT_EQ(verdict(in_columns()), "no error");
  EXPECT_EQ(print(parse_program(in_columns())), in_columns());
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f32[6] \"w[0:2/4]\"")), "no error");
}

TEST(CheckStates, APieceWithAStrideHasItsElements) {
  const std::string c = "device 0: slot %c does not fit state \"w[2:4/4]\"\n  its part 0 is ";
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[3] \"w[2:4/4]\"")),
            c + "f32[3]; the piece has a multiple of 2 elements");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[0,2] \"w[2:4/4]\"")), c + "f32[0,2]; the piece has 2 elements");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[3,2] \"w[0:8][2:4/4]\"")),
            "device 0: slot %c does not fit state \"w[0:8][2:4/4]\"\n  its part 0 is f32[3,2]; the piece has 4 elements");
  EXPECT_EQ(verdict(with(in_columns(), "f32[4] \"w[2:4/4][2:6]\"", "f32[2,2] \"w[2:4/4][2:6]\"")),
            "device 1: slot %b does not fit state \"w[2:4/4][2:6]\"\n  its part 1 is f32[2,2]; the piece is f32[4]");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f32[2,2] \"w[0:2/4]\"")),
            "device 0: slot %a does not fit state \"w[0:2/4]\"\n  its part 0 is f32[2,2]; its owners have 12 elements");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f32[3,2] \"w[0:2/5]\"")),
            "device 1: slot %b does not fit state \"w[2:4/4][0:2]\"\n  its part 0 is f32[2]; its owners have 15 elements");
}

TEST(CheckStates, EachElementOfAStrideHasOneOwner) {
  const std::string hint = "\n  hint: make all but one of them a copy";
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f32[3,3] \"w[0:3/4]\"")),
            "state \"w\" has two owners\n  device 0 has w[0:3/4], device 1 has w[2:4/4][0:2] (slot %b)" + hint);
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f32[3,1] \"w[0:1/4]\"")), "state \"w\": nobody owns its elements [1:2]");
  EXPECT_EQ(verdict(with(in_columns(), "f32[4] \"w[2:4/4][2:6]\"", "f32[3] \"w[2:4/4][3:6]\"")),
            "state \"w\": nobody owns its elements [6:7]");
  EXPECT_EQ(verdict(with(in_columns(), "f32[4] \"w[2:4/4][2:6]\"", "f32[2] \"w[2:4/4][2:4]\"")),
            "state \"w\": nobody owns its elements [10:12]");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[0:2/4]\"", "f64[3,2] \"w[0:2/4]\"")),
            "state \"w\" has pieces of two dtypes\n  w[0:2/4] is of f64, w[2:4/4][0:2] of f32");
}

TEST(CheckStates, CopiesFitWhatIsOwnedWithStrides) {
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,4] \"w\"", "f32[4,4] \"w\"")),
            "device 1: slot %d is no copy of state \"w\"\n  the copy is f32[4,4], its owners have 12 elements of f32");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[4,2] \"w[2:4/4]\"")),
            "device 0: slot %c is no copy of state \"w[2:4/4]\"\n  the copy is f32[4,2], its owners have 12 elements of f32");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[4,3] \"w[2:5/5]\"")),
            "device 0: slot %c is no copy of state \"w[2:5/5]\"\n  the copy is f32[4,3], its owners have 12 elements of f32");
  EXPECT_EQ(verdict(with(in_columns(), "f32[3,2] \"w[2:4/4]\"", "f32[1] \"w[2:4/4][6:7]\"")),
            "device 0: slot %c is no copy of state \"w[2:4/4][6:7]\"\n  the copy is f32[1], its owners have 12 elements of f32");
}

TEST(CheckStates, CopiesFitWhatIsOwned) {
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3,3] \"w\"", "f32[2,5] \"w\"")),
            "device 0: slot %c is no copy of state \"w\"\n  the copy is f32[2,5], its owners have 9 elements of f32");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "bf16[5] \"w[2:7]\"")),
            "device 1: slot %d is no copy of state \"w[2:7]\"\n  the copy is bf16[5], its owners have 9 elements of f32");
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "f32[5] \"w[5:10]\"")),
            "device 1: slot %d is no copy of state \"w[5:10]\"\n  the copy is f32[5], its owners have 9 elements of f32");
}

TEST(CheckStates, ADeviceHoldsAStateOnce) {
  const std::string twice = "\n  hint: a device holds a state once: read it from there";
  EXPECT_EQ(verdict(with(in_pieces(), "f32[3,3] \"w\")", "f32[3,3] \"w\")\n  slot %e copy @192 (f32[3,3] \"w\")")),
            "device 0: slot %e holds state \"w\" once more" + twice);
  EXPECT_EQ(verdict(with(in_pieces(), "f32[2] \"w[4:6]\"", "f32[4] \"w[0:4]\"")),
            "device 0: slot %a holds state \"w[0:4]\" once more" + twice);
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "f32[3] \"w[6:9]\"")),
            "device 1: slot %d holds state \"w[6:9]\" once more" + twice);
}

TEST(CheckStates, WhatIsCopiedHasAnOwner) {
  EXPECT_EQ(verdict(with(in_pieces(), "f32[5] \"w[2:7]\"", "f32[5] \"v[2:7]\"")),
            "device 1: slot %d copies state \"v\", which nobody owns\n"
            "  hint: a checkpoint would not have it: make one of its copies a state");
}

}  // namespace
}  // namespace penstock
