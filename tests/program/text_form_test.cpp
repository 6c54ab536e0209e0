// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "penstock/program.h"
#include "program/samples.h"
#include "program/verify.h"
#include "support/errors.h"
#include "support/golden.h"

namespace penstock {
namespace {

using test::collectives;
using test::host_copies;
using test::message_of;
using test::snapshots;
using test::two_devices;
using test::with;

std::string parse_error(const std::string& text) {
  return message_of([&] { parse_program(text, "p"); });
}

TEST(ProgramText, PrintsAsItReads) {
  test::expect_golden("program/two_devices.txt", print(parse_program(two_devices())));
  test::expect_golden("program/host_copies.txt", print(parse_program(host_copies())));
  test::expect_golden("program/snapshots.txt", print(parse_program(snapshots())));
  test::expect_golden("program/collectives.txt", print(parse_program(collectives())));
}

TEST(ProgramText, EveryFormReadsBack) {
  const std::string text =
      with(with(with(with(two_devices(), "input %x0 = %x[0]", "input %x0 = %x"), "run 1F0 @F1(%h0)", "run @F1(%h0)"),
                "slot %w state @0 (f32[16,16] \"w\")", "slot %w copy (f32[16,16] \"w \\\" w\", i64[] \"step\")"),
           "  free %h1\n  output", "  run 1U @F1() -> (update %h0, add %loss)\n  copy %h1 -> update %\"a slot\"\n  output");
  const std::string named = with(text, "slot %loss step @256 (f32[])", "slot %loss step (f32[])\n  slot %\"a slot\" step (bool[0,3])");
  const Program program = parse_program(named);
  EXPECT_EQ(print(program), named);
  EXPECT_EQ(print(parse_program(print(program))), print(program));
}

TEST(ProgramText, HashFollowsTheText) {
  const Program program = parse_program(two_devices());
  EXPECT_EQ(hash(program), hash(parse_program(two_devices())));
  EXPECT_NE(hash(program), hash(parse_program(with(two_devices(), "run 1F0", "run 1F1"))));
  EXPECT_NE(hash(program), hash(parse_program(with(two_devices(), " terms 2", " terms 3"))));
  EXPECT_NE(hash(parse_program(host_copies())), hash(parse_program(with(host_copies(), "0OFFLOAD0 ", ""))));
  for (const auto& [from, to] : {std::pair("snapshot_bytes=64}\n  slot %w", "snapshot_bytes=128}\n  slot %w"), {"-> update %v", "-> %v"}})
    EXPECT_NE(hash(parse_program(snapshots())), hash(parse_program(with(snapshots(), from, to))));
  EXPECT_NE(hash(parse_program(collectives())), hash(parse_program(with(collectives(), "group 0 (0, 1, 2)", "group 0 (0, 1)"))));
}

TEST(ProgramText, InstructionsAreDescribed) {
  const Program program = parse_program(two_devices());
  EXPECT_EQ(describe(program, 0, 0), "input x[0]");
  EXPECT_EQ(describe(program, 0, 1), "F0 of stage 0");
  EXPECT_EQ(describe(program, 0, 2), "free %x0");
  EXPECT_EQ(describe(program, 0, 3), "send to device 1 (tag 0)");
  EXPECT_EQ(describe(program, 1, 1), "recv from device 0 (tag 1)");
  EXPECT_EQ(describe(program, 1, 6), "output loss");
  EXPECT_EQ(print(program, program.devices[0], program.devices[0].instructions[1]), "run 0F0 @F0(%w, %x0) -> (store %h0)");
  EXPECT_EQ(describe(parse_program(host_copies()), 0, 1), "offload %a to %h");
  EXPECT_EQ(describe(parse_program(host_copies()), 0, 3), "reload %h to %b");
  EXPECT_EQ(describe(parse_program(collectives()), 0, 1), "all_gather %x of group 0 (tag 0)");
  EXPECT_EQ(describe(parse_program(collectives()), 1, 3), "broadcast %b of group 1 (tag 0)");
  EXPECT_EQ(describe(parse_program(collectives()), 2, 3), "broadcast %x of group 1 (tag 0)");
}

TEST(ProgramText, PartsLieAtMultiplesOf64Bytes) {
  const Slot slot{"s", SlotClass::step, {{DType::f32, {3}}, {DType::f64, {9}}, {DType::boolean, {}}}, {}, -1};
  EXPECT_EQ(part_offset(slot, 1), 64);
  EXPECT_EQ(part_offset(slot, 2), 192);
  EXPECT_EQ(slot_bytes(slot), 256);
}

TEST(ProgramText, ASlotHasTheRoomThatCollectivesNeed) {
  Slot slot{"s", SlotClass::step, {{DType::f32, {3}}, {DType::f64, {9}}}, {}, -1, 100};
  EXPECT_EQ(slot_bytes(slot), 192);  // the parts need more
  slot.room = 200;
  EXPECT_EQ(slot_bytes(slot), 256);
  EXPECT_EQ(parse_program(collectives()).devices[1].slots[4].room, 192);
}

TEST(ProgramText, CollectivesReadBackWithAndWithoutAnAction) {
  const Program program = parse_program(collectives());
  const auto text = [&](std::size_t device, std::size_t at) {
    return print(program, program.devices[device], program.devices[device].instructions[at]);
  };
  EXPECT_EQ(text(0, 1), "all_gather 0UNSHARD %x -> store %all in 0 #0");
  EXPECT_EQ(text(1, 3), "broadcast -> store %b from 2 in 1 #0");
  EXPECT_EQ(text(2, 3), "broadcast %x -> from 2 in 1 #0");
  const std::string acting = with(collectives(), "broadcast %x -> from 2", "broadcast 0F2 %x -> from 2");
  EXPECT_EQ(print(parse_program(acting)), acting);
}

TEST(ProgramText, ErrorsNamePlaceAndRemedy) {
  EXPECT_EQ(parse_error(with(two_devices(), "free %h0\n  free %h1\ndevice", "free %h0\n  free %h2\ndevice")),
            "p:31:8: there is no slot %h2\n    free %h2\n         ^ near here\n  hint: did you mean %h1?");
  EXPECT_EQ(parse_error("penstock graph 1\n"),
            "p:1:1: this is a penstock graph, not a penstock program\n  penstock graph 1\n  ^ near here");
  EXPECT_EQ(parse_error(with(two_devices(), "run 0F0", "run 0X0")),
            "p:23:8: unknown kind of action \"X\"\n    run 0X0 @F0(%w, %x0) -> (store %h0)\n         ^ near here");
}

TEST(ProgramText, BrokenTextIsRejected) {
  const auto expect = [](std::string_view from, std::string_view to, std::string_view what) {
    EXPECT_NE(parse_error(with(two_devices(), from, to)).find(what), std::string::npos) << parse_error(with(two_devices(), from, to));
  };
  expect("microbatches=2", "microbatches=0", "expected a number from 1 to 2147483647, found 0");
  expect("run 1F1", "run 1F99999999999", "expected a micro-batch, found 99999999999");
  expect("slot %h0 step @128", "slot %h1 step @128", "a second slot named %h1");
  expect("slot %h0 step @128", "slot %h0 step @-1", "expected a number from 0");
  expect("slot %loss step @256 (f32[])", "slot %loss step (f33[])", "\"f33\" is no dtype");
  expect("slot %loss step @256 (f32[])", "slot %loss step (f32[1099511627776,4])", "more than 2^40 bytes");
  expect("slot %loss step @256 (f32[])", "slot %loss step (f32[0,2305843009213693951])", "more than 2^40 bytes");
  expect("device 1 {", "device 2 {", "expected device 1");
  expect("@F0(%w, %x0)", "@F2(%w, %x0)", "there is no task @F2");
  expect("= %x[0]", "= %y[0]", "there is no data port %y");
  expect("= %x[0]", "= %x[2]", "expected a number from 0 to 1, found 2");
  expect("output %loss = ", "output %l = ", "there is no output port %l");
  expect("recv %h0 from 0 #0", "receive %h0", "expected data, output, group, task, device or the end");
  expect("slot %w state @0 (f32[16,16] \"w\")", "slot %w state @0 (f32[16,16])", "expected a quoted text");
}

TEST(ProgramText, BrokenCollectivesAreRejected) {
  const auto error = [](std::string_view from, std::string_view to) { return parse_error(with(collectives(), from, to)); };
  EXPECT_EQ(error("group 1 (1, 2, 3)", "group 2 (1, 2, 3)"), "p:8:7: expected group 1\n  group 2 (1, 2, 3)\n        ^ near here");
  const auto expect = [&](std::string_view from, std::string_view to, std::string_view what) {
    EXPECT_NE(error(from, to).find(what), std::string::npos) << error(from, to);
  };
  expect("group 1 (1, 2, 3)", "group 1 ()", "expected an integer");
  expect("group 1 (1, 2, 3)", "group 1 (1 2)", "expected \")\"");
  expect("%b -> update %b in 1 #1\n  all_to_all 0F1 %y -> store %z in 1 #2\n  output", "%b -> update %b in 2 #1\n  output",
         "there is no group 2");
  expect("broadcast %x -> from 2", "broadcast %x -> store %b from 2", "expected \"from\"");
  expect("broadcast %x -> from 2", "broadcast %x -> in 1", "expected \"from\"");
  expect("broadcast %x -> from 2", "broadcast -> from 2", "expected \"store\"");
  expect("all_reduce %x -> store %b in 1 #1", "all_reduce -> store %b in 1 #1", "expected \"%\"");
  expect("all_reduce %x -> store %b in 1 #1", "all_reduce %x -> in 1 #1", "expected \"store\"");
  expect("all_reduce %x -> store %b in 1 #1", "all_reduce %x -> store %b #1", "expected \"in\"");
  expect("all_reduce %x -> store %b in 1 #1", "all_reduce %x -> store %b in 1", "expected \"#\"");
  expect("all_reduce %x -> store %b in 1 #1", "all_reduce 0Q %x -> store %b in 1 #1", "unknown kind of action \"Q\"");
  expect("slot %y step @128 (i64[2,8]) room 192", "slot %y step @128 (i64[2,8]) room 0", "expected a number from 1");
}

}  // namespace
}  // namespace penstock
