// SPDX-License-Identifier: Apache-2.0
// Every message of the verifier about groups and collectives, each from the correct program with one place changed.
#include <gtest/gtest.h>

#include "base/text.h"
#include "program/samples.h"
#include "program/verify.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::collectives;
using test::message_of;
using test::with;

std::string verdict(const std::string& text, const VerifyOptions& options = {}) {
  const Program program = parse_program(text);
  return message_of([&] { verify(program, options); });
}
std::string of(std::string_view from, std::string_view to) {
  return verdict(with(collectives(), from, to));
}

TEST(VerifyCollectives, AcceptsACorrectProgramInBothModels) {
  EXPECT_EQ(verdict(collectives()), "no error");
  EXPECT_EQ(verdict(collectives(), {ChannelModel::serial, 1024}), "no error");
}

TEST(VerifyCollectives, Groups) {
  EXPECT_EQ(of("group 1 (1, 2, 3)", "group 1 (1)"), "group 1 (1) has fewer than two members");
  EXPECT_EQ(of("group 1 (1, 2, 3)", "group 1 (1, 3, 2)"), "group 1 (1, 3, 2): its members do not ascend");
  EXPECT_EQ(of("group 1 (1, 2, 3)", "group 1 (1, 2, 2)"), "group 1 (1, 2, 2): its members do not ascend");
  EXPECT_EQ(of("group 1 (1, 2, 3)", "group 1 (1, 2, 4)"), "group 1 (1, 2, 4): there is no device 4\n  the program has devices 0 to 3");
  EXPECT_EQ(of("group 1 (1, 2, 3)", "group 1 (0, 1, 2)"),
            "group 1 (0, 1, 2) has the members of group 0\n  hint: give its collectives to group 0");
}

TEST(VerifyCollectives, AllMembersTakePartInOrder) {
  EXPECT_EQ(of("all_reduce %b -> update %b in 1 #1\n  all_to_all", "all_reduce %b -> update %b in 0 #0\n  all_to_all"),
            "device 3, instruction 2 (all_reduce %b of group 0 (tag 0)): device 3 is no member of group 0\n  its members: 0, 1, 2");
  EXPECT_EQ(of("all_reduce %b -> update %b in 1 #1\n  all_to_all", "all_reduce %b -> update %b in 1 #2\n  all_to_all"),
            "device 3, instruction 2 (all_reduce %b of group 1 (tag 2)): collectives out of order\n  the next tag here is 1\n"
            "  hint: tags number the collectives of a group from 0, in the order of all its members");
  EXPECT_EQ(of("  all_reduce %part -> update %part in 0 #2\n  output %sum", "  output %sum"),
            "device 1, instruction 8 (all_reduce %part of group 0 (tag 2)): device 0 takes no part in it, though a member of group 0");
}

TEST(VerifyCollectives, MembersDoTheSame) {
  const std::string hint = "\n  hint: the members of a group run one program";
  EXPECT_EQ(of("all_to_all 0F1 %y -> store %z in 1 #2\n  output %total", "broadcast -> store %z from 1 in 1 #2\n  output %total"),
            "device 3, instruction 3 (broadcast %z of group 1 (tag 2)): the members of group 1 do different things\n"
            "  this: broadcast from 1 of i64 in 192 bytes\n"
            "  device 1, instruction 7 (all_to_all %y of group 1 (tag 2)): all_to_all of i64 in 192 bytes -> i64 in 192 bytes" +
                hint);
  EXPECT_EQ(of("slot %y step @128 (i64[2,8]) room 192\n  slot %z step @320 (i64[3,8])",
               "slot %y step @128 (i64[2,8]) room 384\n  slot %z step @128 (i64[6,8])"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): the members of group 1 do different things\n"
            "  this: all_to_all of i64 in 384 bytes -> i64 in 384 bytes\n"
            "  device 1, instruction 7 (all_to_all %y of group 1 (tag 2)): all_to_all of i64 in 192 bytes -> i64 in 192 bytes" +
                hint);
  EXPECT_EQ(of("slot %y step @128 (i64[2,8]) room 192\n  slot %z step @320 (i64[3,8])",
               "slot %y step @128 (i64[2,8]) room 192\n  slot %z step @320 (f64[3,8])"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): the members of group 1 do different things\n"
            "  this: all_to_all of i64 in 192 bytes -> f64 in 192 bytes\n"
            "  device 1, instruction 7 (all_to_all %y of group 1 (tag 2)): all_to_all of i64 in 192 bytes -> i64 in 192 bytes" +
                hint);
}

TEST(VerifyCollectives, OneMemberGivesABroadcast) {
  const std::string from_3 = with(with(collectives(), "store %b from 2 in 1 #0\n  all_reduce %b -> update %b in 1 #1\n  reduce_scatter",
                                       "store %b from 3 in 1 #0\n  all_reduce %b -> update %b in 1 #1\n  reduce_scatter"),
                                  "%x -> from 2", "%x -> from 3");
  EXPECT_EQ(verdict(with(from_3, "store %b from 2", "store %b from 3")),
            "device 2, instruction 3 (broadcast %x of group 1 (tag 0)): device 3 alone gives");
  EXPECT_EQ(of("%x -> from 2", "%x -> from 3"),
            "device 2, instruction 3 (broadcast %x of group 1 (tag 0)): the members of group 1 do different things\n"
            "  this: broadcast from 3 of i64 in 128 bytes\n"
            "  device 1, instruction 3 (broadcast %b of group 1 (tag 0)): broadcast from 2 of i64 in 128 bytes\n"
            "  hint: the members of a group run one program");
  std::string nobody = collectives();
  for (std::size_t at; (at = nobody.find("from 2")) != std::string::npos;) nobody.replace(at, 6, "from 0");
  EXPECT_EQ(verdict(nobody),
            "device 1, instruction 3 (broadcast %b of group 1 (tag 0)): device 0, which is to give, is no member of the group");
}

TEST(VerifyCollectives, OnlyNumbersOfOneDtypeAreSummed) {
  EXPECT_EQ(of("slot %all step @128 (i64[6,8])\n  slot %part step @512 (i64[2,8])",
               "slot %all step @128 (i64[5,8], f64[8])\n  slot %part step @512 (i64[2,8])"),
            "device 0, instruction 2 (reduce_scatter %all of group 0 (tag 1)): slot %all has a part of f64\n  what is summed is of i64");
  EXPECT_EQ(of("slot %part step @512 (i64[2,8])", "slot %part step @512 (f64[2,8])"),
            "device 0, instruction 2 (reduce_scatter %all of group 0 (tag 1)): slot %part has a part of f64\n  what is summed is of i64");
  for (const std::string dtype : {"f16", "bool"})
    EXPECT_EQ(of("slot %all step @128 (i64[6,8])\n  slot %part step @512 (i64[2,8])",
                 concat("slot %all step @128 (", dtype, "[1]) room 384\n  slot %part step @512 (i64[2,8])")),
              concat("device 0, instruction 2 (reduce_scatter %all of group 0 (tag 1)): slot %all is of ", dtype,
                     ", which cannot be summed\n  hint: f32, f64, bf16, i32 and i64 can"));
}

TEST(VerifyCollectives, SizesFitTheMembers) {
  EXPECT_EQ(of("slot %all step @128 (i64[6,8])\n  slot %part step @512 (i64[2,8])",
               "slot %all step @128 (i64[5,8])\n  slot %part step @512 (i64[2,8])"),
            "device 0, instruction 1 (all_gather %x of group 0 (tag 0)): slots %x and %all do not fit 3 members\n  128 and 320 bytes");
  EXPECT_EQ(of("slot %part step @512 (i64[2,8])", "slot %part step @512 (i64[1,8])"),
            "device 0, instruction 2 (reduce_scatter %all of group 0 (tag 1)): slots %all and %part do not fit 3 members\n"
            "  384 and 64 bytes");
  EXPECT_EQ(of("slot %z step @320 (i64[3,8])", "slot %z step @320 (i64[2,8])"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): slots %y and %z do not fit 3 members\n  192 and 128 bytes");
  EXPECT_EQ(of("slot %y step @128 (i64[2,8]) room 192\n  slot %z step @320 (i64[3,8])",
               "slot %y step @128 (i64[2,8])\n  slot %z step @320 (i64[2,8])"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): slot %y cannot be cut into 3 equal pieces\n"
            "  it has 128 bytes; pieces are multiples of 64");
}

TEST(VerifyCollectives, AnAllReduceKeepsTheType) {
  const std::string other =
      with(with(with(collectives(), "slot %part step @512 (i64[2,8])", "slot %part step @512 (i64[2,8])\n  slot %t step @0 (i64[16])"),
                "all_reduce %part -> update %part in 0 #2\n  output %sum", "all_reduce %part -> store %t in 0 #2\n  output %sum"),
           "output %sum = %part\n", "output %sum = %part\n  free %t\n");
  EXPECT_EQ(verdict(other), "device 0, instruction 5 (all_reduce %part of group 0 (tag 2)): slots %part and %t differ in type");
}

TEST(VerifyCollectives, ResultsAreNotAddedToNorWrittenOverWhatIsRead) {
  EXPECT_EQ(of("all_reduce %x -> store %b in 1 #1", "all_reduce %x -> add %b in 1 #1"),
            "device 2, instruction 4 (all_reduce %x of group 1 (tag 1)): a collective cannot add to what is there");
  EXPECT_EQ(of("%y -> store %z in 1 #2\n  output %total", "%y -> update %y in 1 #2\n  output %total"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): slot %y cannot be written over what is read");
  EXPECT_EQ(of("all_reduce %x -> store %b in 1 #1", "all_reduce %x -> store %x in 1 #1"),
            "device 2, instruction 4 (all_reduce %x of group 1 (tag 1)): slot %x is defined twice\n  before at instruction 0");
}

TEST(VerifyCollectives, SlotsAreDefinedAndOnTheDevice) {
  EXPECT_EQ(of("all_reduce %x -> store %b in 1 #1", "all_reduce %z -> store %b in 1 #1"),
            "device 2, instruction 4 (all_reduce %z of group 1 (tag 1)): slot %z is used before it is defined");
  EXPECT_EQ(of("slot %y step @128 (i64[2,8]) room 192\n  slot %z step @320 (i64[3,8])",
               "slot %y step @128 (i64[2,8]) room 192\n  slot %z host @0 (i64[3,8])"),
            "device 3, instruction 3 (all_to_all %y of group 1 (tag 2)): slot %z lies in the host's memory\n  hint: reload it");
}

TEST(VerifyCollectives, OverlappingGroupsNeedOneOrder) {
  const std::string order =
      with(collectives(), "  all_reduce %x -> store %b in 1 #1\n  reduce_scatter 0REDUCE_GRAD %all -> store %part in 0 #1\n",
           "  reduce_scatter 0REDUCE_GRAD %all -> store %part in 0 #1\n  all_reduce %x -> store %b in 1 #1\n");
  EXPECT_EQ(verdict(order),
            "collectives of overlapping groups are started in different orders: one queue of collectives per device would never finish\n"
            "  device 0, instruction 2 (reduce_scatter %all of group 0 (tag 1))\n"
            "  device 1, instruction 4 (all_reduce %b of group 1 (tag 1))\n"
            "  device 2, instruction 4 (reduce_scatter %all of group 0 (tag 1))\n"
            "  device 3, instruction 2 (all_reduce %b of group 1 (tag 1))\n"
            "  hint: start them in one order on all devices");
}

// Device 0 waits for the collective before it sends what device 1 waits for before the collective.
TEST(VerifyCollectives, ADeadlockThroughACollectiveNamesTheCycle) {
  const std::string slots = " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n  slot %a step (f32[16])\n  slot %b step (f32[16])\n";
  const auto program = [&](std::string_view first, std::string_view second) {
    return concat("penstock program 1\nprogram @knot {microbatches=1}\ndata %x: f32[16]\ngroup 0 (0, 1, 2)\n",  //
                  "device 0", slots, "  slot %c step (f32[16])\n  input %a = %x\n", first, second, "  free %a\n  free %b\n  free %c\n",
                  "device 1", slots, "  recv %a from 0 #0\n  all_reduce %a -> store %b in 0 #0\n  free %a\n  free %b\n",  //
                  "device 2", slots, "  input %a = %x\n  all_reduce %a -> store %b in 0 #0\n  free %a\n  free %b\n");
  };
  const std::string sum = "  all_reduce %a -> store %b in 0 #0\n  copy %b -> store %c\n", send = "  send %a to 1 #0\n";
  EXPECT_EQ(verdict(program(send, sum)), "no error");
  EXPECT_EQ(
      verdict(program(sum, send)),
      "program @knot can never finish: devices 0, 1 wait for each other\n"
      "  device 0, instruction 2 (copy %b to %c) waits for instruction 1 (all_reduce %a of group 0 (tag 0)), whose other end is "
      "instruction 1 of device 1\n"
      "  device 1, instruction 1 (all_reduce %a of group 0 (tag 0)) waits for instruction 0 (recv from device 0 (tag 0)), whose other "
      "end is instruction 3 of device 0");
}

// Each group for itself could finish; but device 0 has started the sum with device 1 before the one with device 2.
TEST(VerifyCollectives, ADeviceDoesOneCollectiveAfterTheOther) {
  const std::string slots = " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n  slot %a step (f32[16])\n  slot %b step (f32[16])\n";
  const auto program = [&](std::string_view first, std::string_view second) {
    return concat("penstock program 1\nprogram @queue {microbatches=1}\ndata %x: f32[16]\ngroup 0 (0, 1)\ngroup 1 (0, 2)\n",  //
                  "device 0", slots, "  input %a = %x\n  input %b = %x\n", first, second, "  free %a\n  free %b\n",           //
                  "device 1", slots, "  recv %b from 2 #0\n  copy %b -> store %a\n  all_reduce %a -> update %a in 0 #0\n",
                  "  free %a\n  free %b\n",  //
                  "device 2", slots, "  input %a = %x\n  all_reduce %a -> store %b in 1 #0\n  send %b to 1 #0\n  free %a\n  free %b\n");
  };
  const std::string of_0 = "  all_reduce %a -> update %a in 0 #0\n", of_1 = "  all_reduce %b -> update %b in 1 #0\n";
  EXPECT_EQ(verdict(program(of_1, of_0)), "no error");
  EXPECT_EQ(
      verdict(program(of_0, of_1)),
      "program @queue can never finish: devices 1, 2 wait for each other\n"
      "  device 1, instruction 1 (copy %b to %a) waits for instruction 0 (recv from device 2 (tag 0)), whose other end is instruction 2 "
      "of device 2\n"
      "  device 2, instruction 2 (send to device 1 (tag 0)) waits for instruction 1 (all_reduce %a of group 1 (tag 0)), which comes after "
      "a collective whose other end is instruction 2 of device 1");
}

}  // namespace
}  // namespace penstock
