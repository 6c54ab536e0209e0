// Copies of states end the step with what their owners have: what is accepted, and every message of check_copies().
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace penstock
