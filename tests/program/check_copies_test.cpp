// SPDX-License-Identifier: Apache-2.0
// Copies of states end the step with what their owners have: what is accepted, and every message of check_copies().
#include <gtest/gtest.h>

#include <array>

#include "base/text.h"
#include "program/samples.h"
#include "program/verify.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::with;

// A program by what each device does with its "w", of which the first is the owner.
std::string verdict(const std::vector<std::string>& devices) {
  std::string text = R"(penstock program 1
program @p {microbatches=2}
data %x: f32[2,4] split
group 0 (0, 1)
task @next {scratch=0}
graph @next(%w: f32[4]) -> (f32[4]) {
  %0: f32[4] = neg(%w)
  return %0
}
task @two {scratch=0}
graph @two(%w: f32[4]) -> (f32[4], f32[4]) {
  %0: f32[4] = abs(%w)
  %1: f32[4] = neg(%w)
  return %1, %0
}
task @add {scratch=0}
graph @add(%w: f32[4], %x: f32[1,4]) -> (f32[4]) {
  %0: f32[4] = fake::add(%w, %x)
  return %0
}
)";
  for (std::size_t d = 0; d < devices.size(); ++d)
    text += concat("device ", d, " {state_bytes=64, step_bytes=128, scratch_bytes=0}\n  slot %w ", d == 0 ? "state" : "copy",
                   " @0 (f32[4] \"w\")\n", devices[d]);
  const Program program = parse_program(text);
  return message_of([&] { verify(program); });
}

const std::string kUpdate = "  run @next(%w) -> (update %w)\n";

TEST(CheckCopies, AreRefreshedAfterTheUpdate) {
  EXPECT_EQ(verdict({"", ""}), "no error");
  EXPECT_EQ(verdict({kUpdate + "  send %w to 1 #0\n", "  recv %w from 0 #0\n"}), "no error");
  EXPECT_EQ(verdict({kUpdate, ""}),
            "device 1: slot %w does not end the step with what the owner of state \"w\" has\n"
            "  the copy is never written\n"
            "  device 0: slot %w, its owner, is written last at device 0, instruction 0 (run @next)\n"
            "  hint: send it there after its owner's last update, or update it alike");
  EXPECT_EQ(verdict({"  send %w to 1 #0\n" + kUpdate, "  recv %w from 0 #0\n"}),
            "device 1: slot %w does not end the step with what the owner of state \"w\" has\n"
            "  the copy is written last at device 1, instruction 0 (recv from device 0 (tag 0))\n"
            "  device 0: slot %w, its owner, is written last at device 0, instruction 1 (run @next)\n"
            "  hint: send it there after its owner's last update, or update it alike");
}

bool accepts(const std::vector<std::string>& devices) {
  return verdict(devices) == "no error";
}

TEST(CheckCopies, ByWhateverWay) {
  EXPECT_TRUE(accepts({kUpdate + "  send %w to 1 #0\n", "  recv %w from 0 #0\n  send %w to 2 #0\n", "  recv %w from 1 #0\n"}));
  EXPECT_FALSE(accepts({kUpdate + "  send %w to 1 #0\n", "  send %w to 2 #0\n  recv %w from 0 #0\n", "  recv %w from 1 #0\n"}));
  EXPECT_TRUE(accepts({kUpdate + "  broadcast %w -> from 0 in 0 #0\n", "  broadcast -> update %w from 0 in 0 #0\n"}));
  EXPECT_FALSE(accepts({"  broadcast %w -> from 0 in 0 #0\n" + kUpdate, "  broadcast -> update %w from 0 in 0 #0\n"}));
  // Over a slot of its own.
  EXPECT_TRUE(
      accepts({kUpdate + "  send %w to 1 #0\n", "  slot %a step @0 (f32[4])\n  recv %a from 0 #0\n  copy %a -> update %w\n  free %a\n"}));
  EXPECT_FALSE(accepts({kUpdate + "  send %w to 1 #0\n", "  slot %a step @0 (f32[4])\n  recv %a from 0 #0\n  free %a\n"}));
}

TEST(CheckCopies, OrUpdatedAlike) {
  EXPECT_TRUE(accepts({kUpdate, kUpdate}));
  EXPECT_FALSE(accepts({kUpdate + kUpdate, kUpdate}));
  // The same of it in another task.
  const std::string two = "  slot %a step @0 (f32[4])\n  run @two(%w) -> ";
  EXPECT_TRUE(accepts({kUpdate, two + "(update %w, store %a)\n  free %a\n"}));
  EXPECT_FALSE(accepts({kUpdate, two + "(store %a, update %w)\n  free %a\n"}));
  const auto add = [](std::string_view part, std::string_view before = "") {
    return concat("  slot %x step @0 (f32[1,4])\n", before, "  input %x = %x[", part, "]\n  run @add(%w, %x) -> (update %w)\n  free %x\n");
  };
  EXPECT_TRUE(accepts({add("1"), add("1")}));
  EXPECT_FALSE(accepts({add("0"), add("1")}));
  EXPECT_TRUE(accepts({add("1", kUpdate), add("1", kUpdate)}));
  EXPECT_FALSE(accepts({add("1", kUpdate), add("1")}));
}

TEST(CheckCopies, OfWhatAGroupHasAlike) {
  const auto sum = [](std::string_view part) {
    return concat("  slot %x step @0 (f32[1,4])\n  input %x = %x[", part,
                  "]\n  all_reduce %x -> update %x in 0 #0\n  run @add(%w, %x) -> (update %w)\n  free %x\n");
  };
  EXPECT_TRUE(accepts({sum("0"), sum("1")}));
  const auto scatter = [](std::string_view part) {
    return concat("  slot %x step @0 (f32[1,4]) room 128\n  slot %y step @0 (f32[1,4])\n  input %x = %x[", part,
                  "]\n  reduce_scatter %x -> store %y in 0 #0\n  free %x\n  run @add(%w, %y) -> (update %w)\n  free %y\n");
  };
  EXPECT_NE(verdict({scatter("0"), scatter("1")}).find("does not end the step with"), std::string::npos);
}

// The second device has the whole of what the first owns in pieces.
TEST(CheckCopies, InOneFormOnceItIsUpdated) {
  const auto pieces = [](std::string_view run) {
    return message_of([&] {
      verify(parse_program(concat(R"(penstock program 1
program @p {microbatches=1}
task @next {scratch=0}
graph @next(%w: f32[2]) -> (f32[2]) {
  %0: f32[2] = neg(%w)
  return %0
}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %a state @0 (f32[2] "w[0:2]")
  slot %b state @64 (f32[2] "w[2:4]")
)",
                                  run, R"(device 1 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %c copy @0 (f32[2,2] "w")
  slot %d copy @64 (f32[2] "w[0:2]")
)")));
    });
  };
  EXPECT_EQ(pieces(""), "no error");
  EXPECT_EQ(pieces("  run @next(%b) -> (update %b)\n"),
            "device 1: slot %c does not end the step with what the owner of state \"w\" has\n"
            "  the copy is never written\n"
            "  device 0: slot %b, its owner, is written last at device 0, instruction 0 (run @next)\n"
            "  hint: what is updated is copied in its owners' form: a piece of it by its name");
}

// Two data members of two tensor members each: all have "n", and each tensor member a part of "w". Tasks work on both.
struct Mesh {
  std::array<std::string, 2> forward = {"forward", "forward"};  // the task of each tensor member
  std::array<std::string, 2> backward = {"backward", "backward"};
  std::array<bool, 2> reduces = {true, true};  // whether a tensor member reads the sum of the terms, or its own
  int terms = 0, gradients = 1;                // what is summed along which axis: 0 tensor, 1 data
  bool in_pieces = false;                      // whether the gradients are scattered and gathered
};

constexpr std::string_view kMeshTasks = R"(penstock program 1
program @mesh {microbatches=4}
data %x: f32[4,4] split
group 0 (0, 1)
group 1 (2, 3)
group 2 (0, 2)
group 3 (1, 3)
task @forward {scratch=0}
graph @forward(%n: f32[4], %w: f32[4], %x: f32[1,4]) -> (f32[1,4], f32[1,4]) {
  %0: f32[1,4] = fake::norm(%n, %x)
  %1: f32[1,4] = fake::product(%0, %w)
  return %0, %1
}
task @more {scratch=0}
graph @more(%n: f32[4], %w: f32[4], %x: f32[1,4]) -> (f32[1,4], f32[1,4]) {
  %0: f32[1,4] = fake::norm(%w, %x)
  %1: f32[1,4] = fake::norm(%n, %x)
  %2: f32[1,4] = fake::product(%1, %w)
  %3: f32[1,4] = fake::product(%2, %0)
  return %1, %3
}
task @split {scratch=0}
graph @split(%n: f32[4], %w: f32[4], %x: f32[1,4]) -> (f32[1,4], f32[1,4]) {
  %0: f32[1,4] = fake::norm(%w, %x)
  %1: f32[1,4] = fake::product(%0, %w)
  return %0, %1
}
task @backward {scratch=0}
graph @backward(%n: f32[4], %w: f32[4], %h: f32[1,4], %t: f32[1,4]) -> (f32[4], f32[4]) {
  %0: f32[4] = fake::norm_backward(%t, %h, %n)
  %1: f32[4] = fake::product_backward(%t, %h, %w)
  return %0, %1
}
task @backward_of_w {scratch=0}
graph @backward_of_w(%n: f32[4], %w: f32[4], %h: f32[1,4], %t: f32[1,4]) -> (f32[4], f32[4]) {
  %0: f32[4] = fake::norm_backward(%t, %h, %w)
  %1: f32[4] = fake::product_backward(%t, %h, %w)
  return %0, %1
}
task @next {scratch=0}
graph @next(%n: f32[4], %w: f32[4], %dn: f32[4], %dw: f32[4]) -> (f32[4], f32[4]) {
  %0: f32[4] = fake::next(%n, %dn)
  %1: f32[4] = fake::next(%w, %dw)
  return %0, %1
}
)";

std::string device_of(const Mesh& mesh, int data, int tensor) {
  const auto member = static_cast<std::size_t>(tensor);
  const auto group = [&](int axis) { return axis == 0 ? data : 2 + tensor; };
  std::string slots =
      concat("  slot %n ", data + tensor == 0 ? "state" : "copy", " (f32[4] \"n\")\n  slot %w ", data == 0 ? "state" : "copy",
             " (f32[4] \"w[", 4 * tensor, ":", 4 * tensor + 4, "]\")\n  slot %s step (f32[4], f32[4]) terms 2\n");
  std::string does;
  for (int b = 0; b < 2; ++b) {
    slots += concat("  slot %x", b, " step (f32[1,4])\n  slot %h", b, " step (f32[1,4])\n  slot %t", b, " step (f32[1,4])\n  slot %sum", b,
                    " step (f32[1,4])\n");
    const int microbatch = 2 * data + b;
    does += concat("  input %x", b, " = %x[", microbatch, "]\n  run 0F", microbatch, " @", mesh.forward[member], "(%n, %w, %x", b,
                   ") -> (store %h", b, ", store %t", b, ")\n  all_reduce 0F", microbatch, " %t", b, " -> store %sum", b, " in ",
                   group(mesh.terms), " #", b, "\n  run 0B", microbatch, " @", mesh.backward[member], "(%n, %w, %h", b, ", %",
                   mesh.reduces[member] ? "sum" : "t", b, ") -> (", b == 0 ? "store" : "add", " %s)\n  free %x", b, "\n  free %h", b,
                   "\n  free %t", b, "\n  free %sum", b, "\n");
  }
  const int tag = mesh.gradients == mesh.terms ? 2 : 0;
  if (mesh.in_pieces) {
    slots += "  slot %p step (f32[4])\n  slot %g step (f32[4], f32[4])\n";
    does += concat("  reduce_scatter %s -> store %p in ", group(mesh.gradients), " #", tag, "\n  all_gather %p -> store %g in ",
                   group(mesh.gradients), " #", tag + 1, "\n  run @next(%n, %w, %g) -> (update %n, update %w)\n  free %p\n  free %g\n");
  } else {
    does += concat("  all_reduce %s -> update %s in ", group(mesh.gradients), " #", tag,
                   "\n  run @next(%n, %w, %s) -> (update %n, update %w)\n");
  }
  return concat("device ", 2 * data + tensor, " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n", slots, does, "  free %s\n");
}

std::string verdict(const Mesh& mesh) {
  std::string text(kMeshTasks);
  for (int data : {0, 1})
    for (int tensor : {0, 1}) text += device_of(mesh, data, tensor);
  return message_of([&] { verify(parse_program(text)); });
}

bool refuses_n(const Mesh& mesh, int device) {
  return verdict(mesh).starts_with(concat("device ", device, ": slot %n does not end the step with what the owner of state \"n\" has\n"));
}

TEST(CheckCopies, BesidePartsOfTheirOwn) {
  EXPECT_EQ(verdict(Mesh{}), "no error");
  EXPECT_EQ(verdict(Mesh{.in_pieces = true}), "no error");
  // One of the tensor members does more for its own part.
  EXPECT_EQ(verdict(Mesh{.forward = {"forward", "more"}}), "no error");
  EXPECT_EQ(verdict(Mesh{.forward = {"more", "forward"}, .in_pieces = true}), "no error");
}

TEST(CheckCopies, NeedTheTermsOfAllMembers) {
  EXPECT_EQ(verdict(Mesh{.reduces = {true, false}}),
            "device 1: slot %n does not end the step with what the owner of state \"n\" has\n"
            "  the copy is written last at device 1, instruction 17 (run @next)\n"
            "  device 0: slot %n, its owner, is written last at device 0, instruction 17 (run @next)\n"
            "  hint: send it there after its owner's last update, or update it alike");
  EXPECT_TRUE(refuses_n(Mesh{.reduces = {false, true}}, 1));
  EXPECT_TRUE(refuses_n(Mesh{.reduces = {false, false}}, 1));
}

TEST(CheckCopies, AreNotMadeOfPartsOfOneMember) {
  EXPECT_TRUE(refuses_n(Mesh{.backward = {"backward", "backward_of_w"}}, 1));
  EXPECT_TRUE(refuses_n(Mesh{.backward = {"backward_of_w", "backward_of_w"}}, 1));
  EXPECT_TRUE(refuses_n(Mesh{.forward = {"split", "split"}}, 1));
  EXPECT_TRUE(refuses_n(Mesh{.backward = {"backward_of_w", "backward_of_w"}, .in_pieces = true}, 1));
}

TEST(CheckCopies, NeedSumsOverTheRightGroups) {
  EXPECT_TRUE(refuses_n(Mesh{.terms = 1}, 1));
  EXPECT_TRUE(refuses_n(Mesh{.gradients = 0}, 2));
  EXPECT_TRUE(refuses_n(Mesh{.gradients = 0, .in_pieces = true}, 2));
  EXPECT_TRUE(refuses_n(Mesh{.terms = 1, .gradients = 0}, 2));
}

// The first device owns the columns of four elements; the second copies the first row, the first column and what is in the second.
TEST(CheckCopies, WithStridesInOneFormOnceTheyAreUpdated) {
  const auto columns = [](std::string_view run, std::string_view copied) {
    return message_of([&] {
      verify(parse_program(concat(R"(penstock program 1
program @p {microbatches=1}
task @next {scratch=0}
graph @next(%w: f32[2]) -> (f32[2]) {
  %0: f32[2] = neg(%w)
  return %0
}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %a state @0 (f32[2] "w[0:1/2]")
  slot %b state @64 (f32[2] "w[1:2/2]")
)",
                                  run, "device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}\n  slot %c copy @0 (", copied, ")\n")));
    });
  };
  const std::string run = "  run @next(%b) -> (update %b)\n";
  EXPECT_EQ(columns("", "f32[2] \"w[0:2]\""), "no error");
  EXPECT_EQ(columns(run, "f32[2] \"w[0:1/2]\""), "no error");
  EXPECT_EQ(columns(run, "f32[1] \"w[2:3]\""), "no error");
  const auto failure = [](std::string_view state) {
    return concat("device 1: slot %c does not end the step with what the owner of state ", quote(state), " has\n",
                  "  the copy is never written\n",
                  "  device 0: slot %b, its owner, is written last at device 0, instruction 0 (run @next)\n",
                  "  hint: what is updated is copied in its owners' form: a piece of it by its name");
  };
  EXPECT_EQ(columns(run, "f32[2] \"w[0:2]\""), failure("w[0:2]"));
  EXPECT_EQ(columns(run, "f32[1] \"w[1:2/2][1:2]\""), failure("w[1:2/2][1:2]"));
}

}  // namespace
}  // namespace penstock
