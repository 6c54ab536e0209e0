// SPDX-License-Identifier: Apache-2.0
// Every message of the verifier, each from the correct program with one place changed.
#include "program/verify.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "program/memory_plan.h"
#include "program/samples.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::host_copies;
using test::message_of;
using test::snapshots;
using test::two_devices;
using test::with;

std::string verdict(const std::string& text, const VerifyOptions& options = {}) {
  const Program program = parse_program(text);
  return message_of([&] { verify(program, options); });
}

TEST(Verify, AcceptsACorrectProgramInBothModels) {
  EXPECT_EQ(verdict(two_devices()), "no error");
  EXPECT_EQ(verdict(two_devices(), {ChannelModel::serial, 1408}), "no error");
}

TEST(Verify, UseBeforeDefinition) {
  EXPECT_EQ(verdict(with(two_devices(), "  recv %h1 from 0 #1\n  run 1F0 @F1(%h0)", "  recv %h1 from 0 #1\n  run 1F0 @F1(%loss)")),
            "device 1, instruction 2 (F0 of stage 1): slot %loss is used before it is defined");
}

TEST(Verify, UseAfterFree) {
  EXPECT_EQ(verdict(with(two_devices(), "run 1F1 @F1(%h1)", "run 1F1 @F1(%h0)")),
            "device 1, instruction 4 (F1 of stage 1): slot %h0 is used after it was freed\n  freed at instruction 3");
}

TEST(Verify, FreedTwice) {
  EXPECT_EQ(verdict(with(two_devices(), "  output %loss = %loss\n", "  free %h1\n  output %loss = %loss\n")),
            "device 1, instruction 6 (free %h1): slot %h1 is used after it was freed\n  freed at instruction 5");
}

TEST(Verify, NeverFreed) {
  EXPECT_EQ(verdict(with(two_devices(), "  free %loss\n", "")), "device 1: slot %loss is never freed\n  defined at instruction 2");
}

TEST(Verify, NeverDefined) {
  EXPECT_EQ(
      verdict(with(two_devices(), "  slot %h1 step @256 (f32[2,16])\n", "  slot %h1 step @256 (f32[2,16])\n  slot %z step @0 (f32[])\n")),
      "device 0: slot %z is never defined");
}

TEST(Verify, DefinedTwice) {
  EXPECT_EQ(verdict(with(two_devices(), "(add %loss)", "(store %loss)")),
            "device 1, instruction 4 (F1 of stage 1): slot %loss is defined twice\n  before at instruction 2");
}

TEST(Verify, StatesAreUpdatedNotStored) {
  EXPECT_EQ(verdict(with(two_devices(), "input %x1 = %x[1]", "input %w = %x[1]")),
            "device 0, instruction 4 (input x[1]): slot %w holds a state, which is defined from the start\n  hint: update it");
  EXPECT_EQ(verdict(with(two_devices(), "  free %x1\n", "  free %x1\n  free %w\n")),
            "device 0, instruction 7 (free %w): slot %w holds a state, which is never freed");
}

TEST(Verify, WrittenTwiceByOneInstruction) {
  EXPECT_EQ(verdict(with(two_devices(), "(add %loss)", "(add %loss, add %loss)")),
            "device 1, instruction 4 (F1 of stage 1): slot %loss is written twice by one instruction");
}

TEST(Verify, SumsHaveTheirTerms) {
  const std::string second = "  run 1F1 @F1(%h1) -> (add %loss)\n", sum = "slot %loss is a sum of ";
  EXPECT_EQ(verdict(with(two_devices(), second, "")),
            concat("device 1, instruction 5 (output loss): ", sum, "2 terms, and has 1 of them here"));
  EXPECT_EQ(verdict(with(two_devices(), second, second + second)),
            concat("device 1, instruction 5 (F1 of stage 1): ", sum, "2 terms, and has them already"));
  EXPECT_EQ(verdict(with(two_devices(), " terms 2", "")),
            concat("device 1, instruction 4 (F1 of stage 1): ", sum, "1 term, and has them already"));
  EXPECT_EQ(verdict(with(two_devices(), " terms 2", " terms 3")),
            concat("device 1, instruction 6 (output loss): ", sum, "3 terms, and has 2 of them here"));
  const std::string freed = with(two_devices(), "  output %loss = %loss\n", "");
  EXPECT_EQ(verdict(with(freed, second, "")), concat("device 1, instruction 5 (free %loss): ", sum, "2 terms, and has 1 of them here"));
  const std::string early = with(two_devices(), "  output %loss = %loss\n", "");
  EXPECT_EQ(verdict(with(early, second, "  output %loss = %loss\n" + second)),
            concat("device 1, instruction 4 (output loss): ", sum, "2 terms, and has 1 of them here"));
}

// By which the text form knows them.
TEST(Verify, NamesAreUnique) {
  const auto refusal = [](void (*rename)(Program&)) {
    Program program = parse_program(two_devices());
    rename(program);
    return message_of([&] { verify(program); });
  };
  EXPECT_EQ(refusal([](Program& p) { p.tasks[1].name = "F0"; }), "two tasks have the name \"F0\"");
  EXPECT_EQ(refusal([](Program& p) { p.data[1].name = "x"; }), "two data ports have the name \"x\"");
  EXPECT_EQ(refusal([](Program& p) { p.devices[1].slots[1].name = "h0"; }), "device 1: two slots have the name \"h0\"");
}

TEST(Verify, ReadAndAddedTo) {
  EXPECT_EQ(verdict(with(with(two_devices(), " terms 2", ""), "run 1F1 @F1(%h1)", "run 1F1 @F1(%loss)")),
            "device 1, instruction 4 (F1 of stage 1): slot %loss is both read and added to\n  hint: update it");
}

TEST(Verify, OperandsFitTheTask) {
  EXPECT_EQ(verdict(with(two_devices(), "@F0(%w, %x0)", "@F0(%x0, %w)")),
            "device 0, instruction 1 (F0 of stage 0): operand %x0 does not fit task @F0\n"
            "  its part 0 is f32[2,16]; input 0 of the task is f32[16,16]");
  EXPECT_EQ(verdict(with(two_devices(), "@F0(%w, %x0)", "@F0(%w)")),
            "device 0, instruction 1 (F0 of stage 0): the operands do not fit task @F0\n  they have 1 parts; the task has 2 inputs");
  EXPECT_EQ(
      verdict(with(two_devices(), "slot %loss step @256 (f32[])", "slot %loss step @256 (f64[])")),
      "device 1, instruction 2 (F0 of stage 1): result %loss does not fit task @F1\n  its part 0 is f64[]; output 0 of the task is f32[]");
}

TEST(Verify, Copies) {
  const auto copy = [](std::string_view instruction) {
    return verdict(with(two_devices(), "  free %h1\n  output", concat("  ", instruction, "\n  free %h1\n  output")));
  };
  EXPECT_EQ(copy("copy %h1 -> update %h1"), "device 1, instruction 5 (copy %h1 to %h1): a slot is copied to itself");
  EXPECT_EQ(copy("copy %h1 -> add %loss"), "device 1, instruction 5 (copy %h1 to %loss): a copy cannot add");
  EXPECT_EQ(copy("copy %h1 -> update %loss"), "device 1, instruction 5 (copy %h1 to %loss): slots %h1 and %loss differ in type");
}

TEST(Verify, HostCopies) {
  const auto of = [](std::string_view from, std::string_view to) { return verdict(with(host_copies(), from, to)); };
  EXPECT_EQ(verdict(host_copies()), "no error");
  EXPECT_EQ(verdict(host_copies(), {ChannelModel::serial, 192}), "no error");  // the host's bytes do not count
  EXPECT_EQ(of("reload %h -> %b", "copy %h -> store %b"),
            "device 0, instruction 3 (copy %h to %b): slot %h lies in the host's memory\n  hint: reload it");
  EXPECT_EQ(of("input %a = %x", "input %h = %x"),
            "device 0, instruction 0 (input x): slot %h lies in the host's memory\n  hint: reload it");
  EXPECT_EQ(of("OFFLOAD0 %a -> %h", "OFFLOAD0 %w -> %h"), "no error");
  EXPECT_EQ(of("OFFLOAD0 %a -> %h", "OFFLOAD0 %a -> %b"),
            "device 0, instruction 1 (offload %a to %b): slot %b is of the wrong class\n  an offload goes from the device's memory to a "
            "host or snapshot slot");
  EXPECT_EQ(of("reload %h -> %b", "reload %a -> %b"),
            "device 0, instruction 3 (reload %a to %b): slot %a is of the wrong class\n  a reload goes from a host or snapshot slot to the "
            "device's memory");
  EXPECT_EQ(of("slot %b step @64 (f32[16])", "slot %b step @64 (f32[4,4])"),
            "device 0, instruction 3 (reload %h to %b): slots %h and %b differ in type");
}

TEST(Verify, HostSlotsAreDefinedOnceAndFreed) {
  const auto of = [](std::string_view from, std::string_view to) { return verdict(with(host_copies(), from, to)); };
  EXPECT_EQ(of("  offload 0OFFLOAD0 %a -> %h\n", ""), "device 0, instruction 2 (reload %h to %b): slot %h is used before it is defined");
  EXPECT_EQ(of("  free %h\n", ""), "device 0: slot %h is never freed\n  defined at instruction 1");
  EXPECT_EQ(of("  reload %h -> %b\n  free %h\n", "  free %h\n  reload %h -> %b\n"),
            "device 0, instruction 4 (reload %h to %b): slot %h is used after it was freed\n  freed at instruction 3");
  EXPECT_EQ(of("  free %a\n", "  offload %a -> %h\n  free %a\n"),
            "device 0, instruction 2 (offload %a to %h): slot %h is defined twice\n  before at instruction 1");
}

TEST(Verify, HostSlotsLieInTheirArena) {
  EXPECT_EQ(verdict(with(host_copies(), "host_bytes=64", "host_bytes=0")),
            "device 0: slot %h does not fit its arena\n"
            "  it lies at 0 and has 64 bytes; the arena has 0 bytes; places are multiples of 64");
  EXPECT_EQ(verdict(with(with(host_copies(), "  slot %b", "  slot %g host @0 (f32[16])\n  slot %b"), "  free %a\n",
                         "  offload %a -> %g\n  free %a\n  free %g\n")),
            "device 0: slots %g and %h live at the same time in the same place\n  %g has bytes 0 to 64\n  %h has bytes 0 to 64");
}

TEST(Verify, SnapshotSlotsAreThereFromTheBegin) {
  const auto of = [](std::string_view from, std::string_view to) { return verdict(with(snapshots(), from, to)); };
  EXPECT_EQ(verdict(snapshots()), "no error");
  EXPECT_EQ(of("offload %w -> update %s", "offload %w -> %s"),
            "device 0, instruction 0 (offload %w to %s): slot %s holds a snapshot, which is defined from the start\n  hint: update it");
  EXPECT_EQ(of("offload %w -> update %s", "offload %w -> add %s"), "device 0, instruction 0 (offload %w to %s): a copy cannot add");
  EXPECT_EQ(of("  free %b\n", "  free %b\n  free %kept\n"),
            "device 1, instruction 4 (free %kept): slot %kept holds a snapshot, which is never freed");
  EXPECT_EQ(of("reload %kept -> %b", "copy %kept -> store %b"),
            "device 1, instruction 1 (copy %kept to %b): slot %kept lies in the host's memory\n  hint: reload it");
  EXPECT_EQ(of("snapshot @0 (f32[16] \"snapshot0:w\")\n  slot %b", "snapshot @0 (f32[16] \"w\")\n  slot %b"),
            "device 1: slot %kept: \"w\" is no snapshot's name\n  hint: the first one's would be snapshot0:w");
  EXPECT_EQ(of("snapshot_bytes=64}\n  slot %w", "snapshot_bytes=0}\n  slot %w"),
            "device 0: slot %s does not fit its arena\n"
            "  it lies at 0 and has 64 bytes; the arena has 0 bytes; places are multiples of 64");
}

TEST(Verify, SnapshotsAreAllOfWhatTheStateWas) {
  const std::string late = with(with(snapshots(), "  offload %w -> update %s\n", ""), "  send %s",
                                "  copy %x -> update %w\n  offload %w -> update %s\n  send %s");
  EXPECT_EQ(verdict(late),
            "device 0: slot %s does not end the step with what state \"w\" was when it began\n"
            "  the snapshot is written last at device 0, instruction 2 (offload %w to %s)\n"
            "  hint: copy the state to the host's memory ahead of its first update");
  EXPECT_EQ(verdict(with(with(snapshots(), "  send %s to 1 #0\n", ""), "  recv %kept from 0 #0\n", "")),
            "device 1: slot %kept does not get \"snapshot0:w\", though the step takes this snapshot\n"
            "  it is never written\n"
            "  device 0: slot %s is written last at device 0, instruction 0 (offload %w to %s)\n"
            "  hint: take all of a snapshot, or nothing");
  const std::string neither =
      with(with(with(snapshots(), "  send %s to 1 #0\n", ""), "  recv %kept from 0 #0\n", ""), "  offload %w -> update %s\n", "");
  EXPECT_EQ(verdict(neither), "no error");
}

TEST(Verify, Ports) {
  EXPECT_EQ(verdict(with(two_devices(), "= %x[0]", "= %x")),
            "device 0, instruction 0 (input x): slot %x0 is f32[2,16]; the port has f32[4,16]");
  EXPECT_EQ(verdict(with(two_devices(), "= %x[0]", "= %seed[0]")),
            "device 0, instruction 0 (input seed[0]): data seed is not split into micro-batches");
  EXPECT_EQ(verdict(with(two_devices(), "data %x: f32[4,16]", "data %x: f32[5,16]")),
            "device 0, instruction 0 (input x[0]): data x cannot be split into 2 micro-batches\n  it is f32[5,16]");
  EXPECT_EQ(verdict(with(two_devices(), "output %loss = %loss", "output %loss = %loss\n  output %loss = %loss")),
            "device 1, instruction 7 (output loss): this output is given twice\n  before at device 1, instruction 6 (output loss)");
  EXPECT_EQ(verdict(with(two_devices(), "  output %loss = %loss\n", "")), "output loss is never given");
  EXPECT_EQ(verdict(with(two_devices(), "slot %x0 step @0 (f32[2,16])", "slot %x0 step @0 (f32[2,16], f32[])")),
            "device 0, instruction 0 (input x[0]): slot %x0 has 2 parts; a port has one");
}

TEST(Verify, MicrobatchesExist) {
  Program program = parse_program(two_devices());
  program.devices[0].instructions[4].microbatch = 2;
  EXPECT_EQ(message_of([&] { verify(program); }), "device 0, instruction 4 (input x[2]): there is no micro-batch 2\n  the program has 2");
}

TEST(Verify, StatesHaveOneOwner) {
  const std::string second =
      with(two_devices(), "  slot %h0 step @0 (f32[2,16])\n", "  slot %v state @0 (f32[16,16] \"w\")\n  slot %h0 step @0 (f32[2,16])\n");
  const std::string owned_twice = with(second, "device 1 {state_bytes=0", "device 1 {state_bytes=1024");
  EXPECT_EQ(verdict(owned_twice),
            "state \"w\" has two owners\n  device 0 has w, device 1 has w (slot %v)\n  hint: make all but one of them a copy");
  EXPECT_EQ(verdict(with(owned_twice, "slot %v state", "slot %v copy")), "no error");
  EXPECT_EQ(verdict(with(owned_twice, "slot %v state @0 (f32[16,16]", "slot %v copy @0 (f32[16]")),
            "device 1: slot %v is no copy of state \"w\"\n  the copy is f32[16], its owner on device 0 has f32[16,16]");
}

TEST(Verify, TransfersHaveTwoEnds) {
  EXPECT_EQ(verdict(with(two_devices(), "  send %h1 to 1 #1\n", "")),
            "device 1, instruction 1 (recv from device 0 (tag 1)): its send is missing");
  EXPECT_EQ(verdict(with(two_devices(), "  free %h0\n  free %h1\ndevice", "  send %h0 to 1 #2\n  free %h0\n  free %h1\ndevice")),
            "device 0, instruction 8 (send to device 1 (tag 2)): its recv is missing");
  EXPECT_EQ(verdict(with(two_devices(), "send %h0 to 1 #0", "send %h0 to 2 #0")),
            "device 0, instruction 3 (send to device 2 (tag 0)): there is no such peer\n  the program has devices 0 to 1");
  EXPECT_EQ(verdict(with(two_devices(), "recv %h0 from 0 #0", "recv %h0 from 1 #0")),
            "device 1, instruction 0 (recv from device 1 (tag 0)): there is no such peer\n  the program has devices 0 to 1");
  EXPECT_EQ(verdict(with(two_devices(), "send %h1 to 1 #1", "send %h1 to 1 #2")),
            "device 0, instruction 7 (send to device 1 (tag 2)): transfers out of order\n  the next tag here is 1\n"
            "  hint: tags number the transfers of a pair in one direction from 0, in the order of both ends");
}

TEST(Verify, TransfersHaveOneType) {
  const std::string no_second_run = with(with(two_devices(), "  run 1F1 @F1(%h1) -> (add %loss)\n", ""), " terms 2", "");
  EXPECT_EQ(verdict(with(no_second_run, "slot %h1 step @128 (f32[2,16])", "slot %h1 step @128 (f32[16,2])")),
            "device 0, instruction 7 (send to device 1 (tag 1)): its ends differ in type\n"
            "  sent: %h1 (f32[2,16])\n"
            "  received at instruction 1 of device 1: %h1 (f32[16,2])");
}

TEST(Verify, WhatIsMovedHasTheSameRoom) {
  EXPECT_EQ(verdict(with(two_devices(), "slot %h1 step @128 (f32[2,16])", "slot %h1 step @128 (f32[2,16]) room 192")),
            "device 0, instruction 7 (send to device 1 (tag 1)): its ends differ in room\n"
            "  sent: %h1 (f32[2,16]) in 128 bytes\n"
            "  received at instruction 1 of device 1: %h1 (f32[2,16]) in 192 bytes");
  EXPECT_EQ(verdict(with(host_copies(), "slot %b step @64 (f32[16])", "slot %b step @64 (f32[16]) room 128")),
            "device 0, instruction 3 (reload %h to %b): slots %h and %b differ in room\n  64 and 128 bytes");
}

TEST(Verify, PlacesLieInTheArena) {
  EXPECT_EQ(verdict(with(two_devices(), "step_bytes=384", "step_bytes=320")),
            "device 0: slot %h1 does not fit its arena\n"
            "  it lies at 256 and has 128 bytes; the arena has 320 bytes; places are multiples of 64");
  EXPECT_NE(verdict(with(two_devices(), "slot %h1 step @128", "slot %h1 step @100")).find("slot %h1 does not fit its arena"),
            std::string::npos);
  EXPECT_EQ(verdict(with(two_devices(), "slot %h1 step @128 (f32", "slot %h1 step (f32")),
            "device 1: slot %h1 has no place, though others have");
}

TEST(Verify, LiveSlotsDoNotOverlap) {
  EXPECT_EQ(verdict(with(two_devices(), "slot %h1 step @256", "slot %h1 step @192")),
            "device 0: slots %h1 and %h0 live at the same time in the same place\n  %h1 has bytes 192 to 320\n  %h0 has bytes 128 to 256");
  EXPECT_EQ(verdict(with(two_devices(), "slot %loss step @256", "slot %loss step @0")),
            "device 1: slots %loss and %h0 live at the same time in the same place\n  %loss has bytes 0 to 64\n  %h0 has bytes 0 to 128");
}

TEST(Verify, ScratchFits) {
  EXPECT_EQ(verdict(with(two_devices(), "task @F1 {scratch=0}", "task @F1 {scratch=64}")),
            "device 1, instruction 2 (F0 of stage 1): the task's scratch does not fit\n  task @F1 needs 64 bytes; the device has 0");
}

TEST(Verify, ScratchIsWhatTheTemporariesNeed) {
  const std::string task =
      with(two_devices(), "  %0: f32[] = sum(%h)\n  return %0", "  %0: f32[2,16] = gelu(%h)\n  %1: f32[] = sum(%0)\n  return %1");
  EXPECT_EQ(verdict(task), "task @F1 has too little scratch\n  its temporaries need 128 bytes; it has 0");
  EXPECT_EQ(verdict(with(with(task, "@F1 {scratch=0}", "@F1 {scratch=128}"), "step_bytes=320, scratch_bytes=0",
                         "step_bytes=320, scratch_bytes=128")),
            "no error");
}

TEST(Verify, WithoutAMemoryPlanThereIsNoLimit) {
  Program program = parse_program(two_devices());
  for (DeviceProgram& device : program.devices)
    for (Slot& slot : device.slots) slot.offset = -1;
  EXPECT_FALSE(has_memory_plan(program));
  EXPECT_EQ(message_of([&] { verify(program); }), "no error");
  EXPECT_EQ(message_of([&] { verify(program, {ChannelModel::tagged, 1 << 20}); }),
            "program @two has no memory plan\n  its slots have no places, so what a device needs is not known\n"
            "  hint: leave out the memory limit, or lower the program again");
  program.devices[1].slots[0].offset = 0;
  EXPECT_EQ(message_of([&] { verify(program); }), "device 0: slot %w has no place, though others have");
}

TEST(Verify, MemoryLimit) {
  EXPECT_EQ(verdict(two_devices(), {ChannelModel::tagged, 1407}),
            "device 0 needs 1408 bytes; the limit is 1407\n  state 1024, step 384, scratch 0");
}

TEST(Verify, TasksAreTypedGraphs) {
  EXPECT_NE(verdict(with(two_devices(), "linear(%x, %w)", "linear(%w, %x)")).find("linear"), std::string::npos);
}

// Each device sends to the next one round a ring and receives from the one before; `order` says what device d does.
template <class Order>
std::string ring(int devices, Order&& order) {
  std::string text = "penstock program 1\nprogram @ring {microbatches=1}\ndata %x: f32[4]\n";
  for (int d = 0; d < devices; ++d)
    text += concat("device ", d, " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n  slot %a step (f32[4])\n  slot %b step (f32[4])\n",
                   "  slot %c step (f32[4])\n  input %a = %x\n", order((d + 1) % devices, (d + devices - 1) % devices),
                   "  free %b\n  free %c\n");
  return text;
}

TEST(Verify, DeadlockNamesTheCycle) {
  const std::string receive_first = ring(3, [](int next, int previous) {
    return concat("  recv %b from ", previous, " #0\n  copy %b -> store %c\n  send %a to ", next, " #0\n  free %a\n");
  });
  EXPECT_EQ(
      verdict(receive_first),
      "program @ring can never finish: devices 0, 2, 1 wait for each other\n"
      "  device 0, instruction 2 (copy %b to %c) waits for instruction 1 (recv from device 2 (tag 0)), whose other end is instruction 3 of "
      "device 2\n"
      "  device 2, instruction 2 (copy %b to %c) waits for instruction 1 (recv from device 1 (tag 0)), whose other end is instruction 3 of "
      "device 1\n"
      "  device 1, instruction 2 (copy %b to %c) waits for instruction 1 (recv from device 0 (tag 0)), whose other end is instruction 3 of "
      "device 0");
  const std::string free_first = ring(2, [](int next, int previous) {
    return concat("  send %a to ", next, " #0\n  free %a\n  recv %b from ", previous, " #0\n  copy %b -> store %c\n");
  });
  EXPECT_EQ(verdict(free_first),
            "program @ring can never finish: devices 0, 1 wait for each other\n"
            "  device 0, instruction 2 (free %a) waits for instruction 1 (send to device 1 (tag 0)), whose other end is instruction 3 of "
            "device 1\n"
            "  device 1, instruction 2 (free %a) waits for instruction 1 (send to device 0 (tag 0)), whose other end is instruction 3 of "
            "device 0");
  EXPECT_EQ(verdict(ring(3,
                         [](int next, int previous) {
                           return concat("  send %a to ", next, " #0\n  recv %b from ", previous,
                                         " #0\n  copy %b -> store %c\n  free %a\n");
                         })),
            "no error");
}

TEST(Verify, SerialChannelNeedsOneOrder) {
  const std::string crossing = ring(2, [](int next, int previous) {
    return concat("  send %a to ", next, " #0\n  recv %b from ", previous, " #0\n  copy %b -> store %c\n  free %a\n");
  });
  EXPECT_EQ(verdict(crossing), "no error");
  EXPECT_EQ(verdict(crossing, {ChannelModel::serial, -1}),
            "devices 0 and 1 start their transfers in different orders: one serial channel would never finish\n"
            "  transfer 0 of the pair is, to device 0: device 0, instruction 1 (send to device 1 (tag 0))\n"
            "  and to device 1: device 1, instruction 1 (send to device 0 (tag 0))");
}

}  // namespace
}  // namespace penstock
