// SPDX-License-Identifier: Apache-2.0
// The passes that only move and order what is there, on drafts written by hand: text in, the lines that the pass makes out.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "lower/execution.h"
#include "lower/passes.h"
#include "support/errors.h"

namespace penstock {
namespace {

// Takes no time worth speaking of, and 1000 times as much.
const std::string kTasks =
    "task @t\ngraph @t(%x: f32[2]) -> (f32[2]) {\n  return %x\n}\n"
    "task @slow\ngraph @slow(%x: f32[200]) -> (f32[200]) {\n  %0: f32[200] = neg(%x)\n  return %0\n}\n";

std::string instances(const std::string& said) {
  std::string out;
  for (const std::string& i : split(said, '\n'))
    if (!i.empty()) out += concat("instance %", i, i.ends_with(")") ? "\n" : " (f32[2])\n");
  return out;
}

// The lines of the draft that begin with one of the words, as the pass leaves it.
std::string after_pass(std::string_view pass, const std::string& draft, const std::vector<std::string>& words,
                       const LowerInput& input = {}) {
  Draft d = parse_draft(concat("penstock draft 1\nafter ", lower_passes()[find_pass(pass) - 1].name, "\n", kTasks, draft));
  run_passes(input, d, pass);
  std::string out;
  for (const std::string& line : split(print(d), '\n'))
    if (std::ranges::any_of(words, [&](const std::string& word) { return line.starts_with(word); })) out += line + "\n";
  return out;
}

const std::vector<std::string> kRows = {"actor", "  "};

// The rows alone: of tasks the bodies are indented too.
std::string rows_after(std::string_view pass, const std::string& draft, const LowerInput& input = {}) {
  const std::string lines = after_pass(pass, draft, kRows, input);
  return lines.substr(lines.find("actor 0"));
}

// Only what its own backward on its own actor reads goes: not what stage 1 reads, nor what a W elsewhere reads alone, nor a sum, nor what
// stays. Stage 1 leaves nothing.
TEST(SmallDrafts, OffloadMovesWhatOnlyTheOwnBackwardReads) {
  const std::string draft =
      instances(
          "d data 0\n"
          "own computed on 0 unit 0\nother computed on 0 unit 0\nfar computed on 0 unit 0\nnone computed on 0 unit 0\n"
          "sum computed on 0\nnext computed on 0 unit 1\nmid computed on 0 unit 0\nout computed on 1 unit 0\n"
          "kept computed on 0 unit 0 stays\n") +
      "actor 0\n"
      "  run 0F0 @t(%d) -> (store %own, store %other, store %far, store %none, store %sum, store %kept)\n"
      "  place 0OFFLOAD0\n"
      "  run 0F1 @t(%d) -> (store %next, add %sum)\n"
      "  place 0U\n"
      "  run 0B1 @t(%next) -> (add %sum)\n"
      "  place 0RELOAD0\n"
      "  run 0B0 @t(%own, %other, %sum, %kept) -> (add %sum)\n"
      "  run 0I0 @t(%d) -> (store %mid)\n"
      "  run 0W0 @t(%mid) -> (add %sum)\n"
      "actor 1\n"
      "  run 1F0 @t(%other) -> (store %out)\n"
      "  place 1OFFLOAD0\n"
      "  place 1RELOAD0\n"
      "  run 0W0 @t(%far, %own) -> (add %out)\n";
  EXPECT_EQ(rows_after("offload", draft),
            "actor 0\n"
            "  run 0F0 @t(%d) -> (store %own, store %other, store %far, store %none, store %sum, store %kept)\n"
            "  offload 0OFFLOAD0 (%own) -> (store %own.host)\n"
            "  run 0F1 @t(%d) -> (store %next, add %sum)\n"
            "  place 0U\n"
            "  run 0B1 @t(%next) -> (add %sum)\n"
            "  reload 0RELOAD0 (%own.host) -> (store %own.back)\n"
            "  run 0B0 @t(%own.back, %other, %sum, %kept) -> (add %sum)\n"
            "  run 0I0 @t(%d) -> (store %mid)\n"
            "  run 0W0 @t(%mid) -> (add %sum)\n"
            "actor 1\n"
            "  run 1F0 @t(%other) -> (store %out)\n"
            "  run 0W0 @t(%far, %own) -> (add %out)\n");
  EXPECT_EQ(after_pass("offload", draft, {"instance %own"}),
            "instance %own computed on 0 unit 0 (f32[2])\n"
            "instance %own.host computed on 0 unit 0 host (f32[2])\n"
            "instance %own.back computed on 0 unit 0 (f32[2])\n");
}

// Stale are the copies of what its home writes and a reader does not: not `made`, which its reader makes too, nor `kept`, which nobody
// writes, nor `alone`, which nobody else reads.
TEST(SmallDrafts, RefreshFindsStaleCopies) {
  const std::string draft = instances(
                                "late state 1 on 0\nstale state 0 on 0\nmade state 2 on 0\nkept state 3 on 0\nalone state 4 on 0\n"
                                "x computed on 1\n") +
                            "actor 0\n"
                            "  run @t(%stale, %late, %made, %kept, %alone) -> (update %stale, update %late, update %made, update %alone)\n"
                            "actor 1\n"
                            "  run @t(%stale, %late, %made, %kept) -> (store %x, update %made)\n"
                            "  run @t(%x) -> (add %x)\n";
  EXPECT_EQ(after_pass("refresh", draft, {"refresh"}), "refresh %stale\nrefresh %late\n");
}

LowerInput ahead(int runs) {
  LowerInput input;
  input.options.receive_ahead = runs;
  return input;
}

// One for each device that reads, behind the last run that writes. A receive is posted ahead of so many runs; host copies do not count.
TEST(SmallDrafts, TransfersGoOnceToEachReader) {
  const std::string draft = instances(
                                "d data 0\ns state 1 on 0\na computed on 0\nb computed on 1\nc computed on 1\nh computed on 1 host\n"
                                "e computed on 2\n") +
                            "actor 0\n"
                            "  run @t(%d) -> (store %a)\n"
                            "  run @t(%s) -> (add %a, update %s)\n"
                            "  run @t(%a) -> (update %s)\n"
                            "actor 1\n"
                            "  run @t(%d) -> (store %b)\n"
                            "  run @t(%b) -> (store %c)\n"
                            "  offload (%b) -> (store %h)\n"
                            "  run @t(%c) -> (add %c)\n"
                            "  run @t(%a) -> (add %c)\n"
                            "  run @t(%a, %s) -> (add %c)\n"
                            "actor 2\n"
                            "  run @t(%a) -> (store %e)\n"
                            "  run @t(%e) -> (update %s)\n"
                            "refresh %s\n";
  EXPECT_EQ(after_pass("transfers", draft, {"transfer"}, ahead(2)),
            "transfer %a from 0 to 1 #0 after 1 before 1\n"
            "transfer %a from 0 to 2 #0 after 1 before 0\n"
            "transfer %s from 0 to 1 #1 after 3 before 6\n"
            "transfer %s from 0 to 2 #1 after 3 before 2\n");
  EXPECT_EQ(after_pass("transfers", draft, {"transfer %a"}, ahead(0)),
            "transfer %a from 0 to 1 #0 after 1 before 4\n"
            "transfer %a from 0 to 2 #0 after 1 before 0\n");
}

// Device 1 takes long to make x. So a and b are sent first, whatever the order in the draft; x is received behind both sends, and b ahead
// of the run behind which x is sent, although it is read after that. The refresh comes last.
TEST(SmallDrafts, OrderIsThatOfOneExecution) {
  const std::string draft = instances(
                                "d data 0\ns state 1 on 0\na computed on 0\nb computed on 0\np computed on 0\nq computed on 1\n"
                                "big computed on 1 (f32[200])\nx computed on 1\ny computed on 2\n") +
                            "actor 0\n"
                            "  run @t(%d) -> (store %a)\n"
                            "  run @t(%d) -> (store %b)\n"
                            "  run @t(%x) -> (store %p, update %s)\n"
                            "actor 1\n"
                            "  run @slow(%d) -> (store %big, store %x)\n"
                            "  run @t(%a, %y) -> (store %q)\n"
                            "  run @t(%b, %s) -> (add %q)\n"
                            "actor 2\n"
                            "  run @t(%d) -> (store %y)\n"
                            "transfer %s from 0 to 1 #2 after 3 before 3\n"
                            "transfer %x from 1 to 0 #0 after 0 before 0\n"
                            "transfer %a from 0 to 1 #0 after 0 before 0\n"
                            "transfer %y from 2 to 1 #0 after 0 before 1\n"
                            "transfer %b from 0 to 1 #1 after 1 before 2\n";
  EXPECT_EQ(after_pass("order", draft, {"transfer"}),
            "transfer %a from 0 to 1 #0 after 0 before 0\n"
            "transfer %y from 2 to 1 #0 after 0 before 1\n"
            "transfer %b from 0 to 1 #1 after 1 before 0\n"
            "transfer %x from 1 to 0 #0 after 0 before 2\n"
            "transfer %s from 0 to 1 #2 after 3 before 3\n");
}

// Device 1 posts its receive of a when it begins its third run, at 2; device 0 frees it behind the first run that ends later, not at the
// same time. What nobody else reads goes at once (b), what the host copies or a collective takes one run later (c, m), what is sent in time
// too (e). Data goes like the rest, states stay.
TEST(SmallDrafts, FreesComeWhenNothingNeedsTheSlot) {
  const std::string draft = instances(
                                "d data 0\ns state 1 on 0\na computed on 0\nb computed on 0\nc computed on 0\nh computed on 0 host\n"
                                "m computed on 0\ne computed on 0\nx computed on 1\n") +
                            "actor 0\n"
                            "  run @t(%d) -> (store %a)\n"
                            "  run @t(%s) -> (store %b)\n"
                            "  run @t(%b) -> (store %c, store %m)\n"
                            "  offload (%c) -> (store %h)\n"
                            "  all_reduce (%m) -> (update %m)\n"
                            "  run @t(%d) -> (update %s)\n"
                            "  run @t(%d) -> (store %e)\n"
                            "  reload (%h) -> (store %b)\n"
                            "  run @t(%s) -> (update %s)\n"
                            "  run @t(%s) -> (update %s)\n"
                            "actor 1\n"
                            "  run @t(%s) -> (store %x)\n"
                            "  run @t(%x) -> (add %x)\n"
                            "  run @t(%a) -> (add %x)\n"
                            "  run @t(%e) -> (add %x)\n"
                            "transfer %a from 0 to 1 #0 after 0 before 2\n"
                            "transfer %e from 0 to 1 #1 after 6 before 2\n";
  EXPECT_EQ(after_pass("frees", draft, {"free"}),
            "free %d on 0 after 6\n"
            "free %a on 0 after 2\n"
            "free %b on 0 after 8\n"
            "free %c on 0 after 5\n"
            "free %m on 0 after 5\n"
            "free %h on 0 after 8\n"
            "free %e on 0 after 8\n"
            "free %x on 1 after 3\n"
            "free %a on 1 after 2\n"
            "free %e on 1 after 3\n");
}

// Runs take what a roofline says, all else nothing. A receive is posted at its place, whatever the draft's order; what is sent to another
// device, or was not yet written last, brings nothing; a refresh is never sent, but posted.
TEST(SmallDrafts, AnExecutionTimesWhatWaits) {
  const Draft draft = parse_draft("penstock draft 1\nafter transfers\n" + kTasks +
                                  instances("d data 0\ns state 1 on 0\na computed on 0\nb computed on 0 (f32[200])\nx computed on 1\n"
                                            "z computed on 1\ny computed on 2\n") +
                                  "actor 0\n"
                                  "  run @t(%d) -> (store %a)\n"
                                  "  run @slow(%a) -> (store %b, update %s)\n"
                                  "  run @t(%x) -> (update %s)\n"
                                  "actor 1\n"
                                  "  copy (%d) -> (store %z)\n"
                                  "  run @t(%a) -> (store %x)\n"
                                  "  run @t(%y) -> (add %x)\n"
                                  "  run @t(%b) -> (update %s)\n"
                                  "actor 2\n"
                                  "  run @slow(%d) -> (store %y)\n"
                                  "  run @t(%a) -> (add %y)\n"
                                  "transfer %x from 1 to 0 #0 after 2 before 2\n"
                                  "transfer %b from 0 to 1 #1 after 1 before 3\n"
                                  "transfer %a from 0 to 1 #0 after 0 before 0\n"
                                  "transfer %a from 0 to 2 #0 after 0 before 1\n"
                                  "transfer %y from 2 to 1 #0 after 1 before 1\n"
                                  "transfer %s from 0 to 1 #2 after 3 before 4\n");
  const Execution done = execute(draft);
  EXPECT_EQ(done.end, (std::vector<std::vector<double>>{{1, 1602, 1604}, {0, 2, 1603, 1604}, {1601, 1602}}));
  EXPECT_EQ(done.sent, (std::vector<double>{1603, 1602, 1, 1, 1602, kNever}));
  EXPECT_EQ(done.posted, (std::vector<double>{1602, 1603, 0, 1601, 0, 1604}));
}

TEST(SmallDrafts, AnExecutionThatWaitsForItselfIsAnError) {
  const Draft draft = parse_draft("penstock draft 1\nafter transfers\n" + kTasks +
                                  instances("d data 0\na computed on 0\nb computed on 0\nx computed on 1\n") +
                                  "actor 0\n"
                                  "  run @t(%d) -> (store %a)\n"
                                  "  run @t(%x) -> (store %b)\n"
                                  "actor 1\n"
                                  "  run @t(%b) -> (store %x)\n"
                                  "transfer %b from 0 to 1 #0 after 1 before 0\n"
                                  "transfer %x from 1 to 0 #0 after 0 before 1\n");
  EXPECT_EQ(test::message_of([&] { execute(draft); }),
            "the step waits for itself: device 0 never begins its run 1\n"
            "  it reads what is sent, or a collective that others begin, only after they have read what device 0 does later\n"
            "  hint: change the order of the table's actions");
}

// Two devices; the gradients of stage 0 are a block, what stage 1 sums and the loss are not.
const std::string kSums = "block 0 (f32[2], f32[2])\nsharded result 0 0 0\nsharded result 1 0 1\n" +
                          instances("d data 0\nloss computed on 0\nsum computed on 0 (f32[2], f32[2])\nb computed on 0 unit 0\n") +
                          "actor 0\n"
                          "  run 0F0 @t(%d) -> (store %loss)\n"
                          "  run 0F1 @t(%d) -> (add %loss)\n"
                          "  run 1B0 @t(%d) -> (store %b)\n"
                          "  run 0B0 @t(%b) -> (store %sum)\n"
                          "  place 1REDUCE_GRAD\n"
                          "  place 0REDUCE_GRAD\n"
                          "  run 1B1 @t(%d) -> (add %b)\n"
                          "  run 0B1 @t(%b) -> (add %sum)\n"
                          "  place 0REDUCE_GRAD\n"
                          "  place 0U\n"
                          "  run 1W1 @t(%d) -> (add %b)\n"
                          "partial 2 on 0 %loss part 0\n"
                          "partial 0 on 0 stage 0 %sum part 0\n"
                          "partial 1 on 0 stage 0 %sum part 1\n";

LowerInput two_devices(int level, int local = 1) {
  LowerInput input;
  input.group_size = {2};
  input.shares = 2;
  input.options.zero = level;
  input.local = local;
  return input;
}

TEST(SmallDrafts, ReduceAtLevelOneIsOnceBehindTheLastTerm) {
  EXPECT_EQ(rows_after("reduce", kSums, two_devices(1)),
            "actor 0\n"
            "  run 0F0 @t(%d) -> (store %loss)\n"
            "  run 0F1 @t(%d) -> (add %loss)\n"
            "  all_reduce 0REDUCE_GRAD (%loss) -> (update %loss)\n"
            "  run 1B0 @t(%d) -> (store %b)\n"
            "  run 0B0 @t(%b) -> (store %sum.0)\n"
            "  run 1B1 @t(%d) -> (add %b)\n"
            "  run 0B1 @t(%b) -> (add %sum.0)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.0) -> (store %sum$0$5)\n"
            "  place 0U\n"
            "  run 1W1 @t(%d) -> (add %b)\n");
  EXPECT_EQ(after_pass("reduce", kSums, {"partial"}, two_devices(1)),
            "partial 2 on 0 %loss part 0\n"
            "partial 0 on 0 stage 0 %sum$0$5 part 0\n"
            "partial 1 on 0 stage 0 %sum$0$5 part 1\n");
}

// At each REDUCE_GRAD of the stage, where something was added since the last; the U waits for the sum of the shares.
TEST(SmallDrafts, ReduceAtLevelTwoIsAtEachReduceGrad) {
  EXPECT_EQ(rows_after("reduce", kSums, two_devices(2)),
            "actor 0\n"
            "  run 0F0 @t(%d) -> (store %loss)\n"
            "  run 0F1 @t(%d) -> (add %loss)\n"
            "  all_reduce 0REDUCE_GRAD (%loss) -> (update %loss)\n"
            "  run 1B0 @t(%d) -> (store %b)\n"
            "  run 0B0 @t(%b) -> (store %sum.0)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.0) -> (store %sum$0$5)\n"
            "  run 1B1 @t(%d) -> (add %b)\n"
            "  run 0B1 @t(%b) -> (store %sum.1)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.1) -> (store %sum.share.1)\n"
            "  run 0REDUCE_GRAD @copy.0(%sum.share.1) -> (add %sum$0$5)\n"
            "  place 0U\n"
            "  run 1W1 @t(%d) -> (add %b)\n");
}

// What waits for a reduction stands behind the next run that computes.
TEST(SmallDrafts, ReductionsGoOnBesideARun) {
  std::string draft = kSums;
  draft.replace(draft.find("  place 0U\n"), 11, "  offload (%b) -> (store %h)\n");
  draft.insert(draft.find("actor 0"), instances("h computed on 0 unit 0 host\n"));
  const std::string rows = rows_after("reduce", draft, two_devices(2));
  EXPECT_EQ(rows.substr(rows.find("  reduce_scatter 0REDUCE_GRAD (%sum.1)")),
            "  reduce_scatter 0REDUCE_GRAD (%sum.1) -> (store %sum.share.1)\n"
            "  offload (%b) -> (store %h)\n"
            "  run 1W1 @t(%d) -> (add %b)\n"
            "  run 0REDUCE_GRAD @copy.0(%sum.share.1) -> (add %sum$0$6)\n");
}

TEST(SmallDrafts, ReduceRefusesWhatIsSplitAndComputedBeforeTheLoop) {
  std::string draft = kSums;
  draft.insert(draft.find("partial"), "use 0 on 0 unit 1 %b\n");
  EXPECT_EQ(test::message_of([&] { rows_after("reduce", draft, two_devices(0)); }),
            "what the loop splits into micro-batches is computed before it (operand 0 of the loop)\n"
            "  hint: with data parallelism the loop can only split data ports");
}

// Nodes of several devices: their share is scattered once more, behind the next run or ahead of what reads it.
TEST(SmallDrafts, ReduceOnNodesScattersTheirShareLast) {
  EXPECT_EQ(rows_after("reduce", kSums, two_devices(3, 2)),
            "actor 0\n"
            "  run 0F0 @t(%d) -> (store %loss)\n"
            "  run 0F1 @t(%d) -> (add %loss)\n"
            "  all_reduce 0REDUCE_GRAD (%loss) -> (update %loss)\n"
            "  run 1B0 @t(%d) -> (store %b)\n"
            "  run 0B0 @t(%b) -> (store %sum.0)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.0) -> (store %sum.node)\n"
            "  run 1B1 @t(%d) -> (add %b)\n"
            "  run 0B1 @t(%b) -> (store %sum.node.1)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.node.1) -> (store %sum.node.share.1)\n"
            "  run 0REDUCE_GRAD @copy.0(%sum.node.share.1) -> (add %sum.node)\n"
            "  reduce_scatter 0REDUCE_GRAD (%sum.node) -> (store %sum$0$5)\n"
            "  place 0U\n"
            "  run 1W1 @t(%d) -> (add %b)\n");
}

// An actor of one device has nothing to reduce, and no REDUCE_GRAD stays; other placeholders do.
TEST(SmallDrafts, ReduceLeavesSingleDevicesAlone) {
  LowerInput input = two_devices(2);
  input.group_size = {1};
  std::string expected = kSums.substr(kSums.find("actor 0"));
  expected = expected.substr(0, expected.find("partial"));
  for (const std::string place : {"  place 0REDUCE_GRAD\n", "  place 0REDUCE_GRAD\n", "  place 1REDUCE_GRAD\n"})
    expected.erase(expected.find(place), place.size());
  EXPECT_EQ(rows_after("reduce", kSums, input), expected);
}

}  // namespace
}  // namespace penstock
