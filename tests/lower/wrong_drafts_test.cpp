// SPDX-License-Identifier: Apache-2.0
// Drafts that no pass leaves: what reading and verifying them says.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/passes.h"
#include "models/registry.h"
#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

const char* const kGpipe = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
const char* const kSharded = "0UNSHARD,0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1UNSHARD,1F0,1F1,1B0,1B1,1REDUCE_GRAD\n";

LowerInput perceptron(const char* csv = kGpipe, const CompileOptions& options = {}) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  OptimiserOptions sgd;
  sgd.name = "sgd";
  const auto model = make_model(builtin_models(), "mlp", sizes);
  const int microbatches = 2 * shares_of(options.devices);
  return lower_input(training_step(*model, {2 * microbatches, 4, microbatches}, sgd), parse_schedule(csv, "table.csv"), options);
}

// A change of the draft that a pass leaves, and what lowering on from it says.
struct Wrong {
  const char* after;
  const char *from, *to;  // the first `from` in the text
  const char* message;
};

const Wrong kWrongs[] = {
    {"actions", "\nactor 1\n", "\n", "draft after actions: rows: there are 1, the table and its groups have 2"},
    {"actions", "@F0(%tokens.0, %embedding.weight,", "@F0(%embedding.weight, %tokens.0,",
     "draft after actions: actor 0, run 0 (0F0): it reads (f32[16,8], i64[2,4], f32[8,8], f32[8]), its task takes (i64[2,4], f32[16,8], "
     "f32[8,8], f32[8])"},
    {"actions", "(store %F0:7.0", "(add %F0:7.0",
     "draft after actions: actor 0, run 0 (0F0): it adds to or updates %F0:7.0 of 0, which nothing has stored"},
    {"actions", "(store %F0:7.1, ", "(store %F0:7.0, ", "draft after actions: actor 0, run 1 (0F1): it stores anew %F0:7.0 of 0"},
    {"actions", "-> (store %F1:9.0, store %sum:11.1)", "-> (store %F1:9.1, store %sum:11.1)",
     "draft after actions: actor 1, run 1 (1F1): it stores anew %F1:9.1 of 1"},
    {"actions", "actor 1\n", "actor 1\n  copy 1F0 (%embedding.weight) -> (update %embedding.weight, update %embedding.weight)\n",
     "draft after actions: actor 1, run 0 (1F0): copy of 1 instances to 2"},
    {"actions", "  run 0F1 @F0(%tokens.1, %embedding.weight, %layers.0.weight, %layers.0.bias) -> (store %F0:7.1, store %F0:8.1)\n", "",
     "draft after actions: actor 1, run 1 (1F1): it reads %F0:7.1 of 0, which nothing has written"},
    {"actions", "run 0F0 ", "run 2F0 ", "draft after actions: actor 0, run 0 (2F0): there is no such stage"},
    {"actions", "-> (store %F0:7.0, store %F0:8.0)", "-> (store %F0:7.0)",
     "draft after actions: actor 0, run 0 (0F0): it writes (f32[2,4,8]), its task takes (f32[2,4,8], f32[2,4,8])"},
    {"actions", "actor 1\n", "actor 1\n  copy 1F0 (%embedding.weight, %embedding.weight) -> (update %embedding.weight)\n",
     "draft after actions: actor 1, run 0 (1F0): copy of 2 instances to 1"},
    {"actions", "actor 1\n",
     "actor 1\n  copy 1F0 (%embedding.weight, %embedding.weight) -> (update %embedding.weight, update %embedding.weight)\n",
     "draft after actions: actor 1, run 0 (1F0): copy of 2 instances to 2"},
    {"actions", "actor 1\n", "actor 1\n  offload 1F0 (%embedding.weight) -> (store %layers.0.bias)\n",
     "draft after actions: actor 1, run 0 (1F0): offload between instances of different types"},
    {"actions", "actor 1\n", "actor 1\n  copy 1F0 (%targets.0) -> (update %tokens.0)\n",
     "draft after actions: actor 1, run 0 (1F0): it writes data, %tokens.0"},
    {"actions", "%tokens.0 data 11 unit 0", "%tokens.0 data 11 on 0 unit 0",
     "draft after actions: instance %tokens.0 of 0: its home is 0, there are 2"},
    {"actions", "%F0:7.0 computed on 0", "%F0:7.0 computed on 5", "draft after actions: instance %F0:7.0 of 5: its home is 5, there are 2"},
    {"actions", "%F0:7.0 computed on 0", "%F0:7.0 computed on 1",
     "draft after actions: actor 1, run 0 (1F0): it reads %F0:7.0 of 1, which nothing has written"},
    {"actions", "%sum:13.0 computed on 0", "%sum:13.0 computed on 1",
     "draft after actions: actor 0, run 2 (0B0): it writes %sum:13.0 of 1, whose home is 1"},
    {"actions", "%embedding.weight state 0", "%embedding.weight state 11",
     "draft after actions: instance %embedding.weight: input 11 of the step is data"},
    {"actions", "%embedding.weight state 0", "%embedding.weight state 99",
     "draft after actions: instance %embedding.weight: it is of no input of the step, or computed and of one"},
    {"actions", "partial 1 on 0 stage 0 %sum:13.0 part 0\n", "", "draft after actions: result 1 of the loop: nothing sums it"},
    {"actions", "partial 1 on 0", "partial 1 on 4",
     "draft after actions: partial 1: the loop has no such result, there is no such actor, or the instance no such part"},
    {"actions", "%sum:13.0 part 0", "%sum:13.0 part 3",
     "draft after actions: partial 1: the loop has no such result, there is no such actor, or the instance no such part"},
    {"actions", "partial 1 on 0", "partial 9 on 0",
     "draft after actions: partial 9: the loop has no such result, there is no such actor, or the instance no such part"},
    {"actions", "partial 1 on 0", "use 0 on 7 %sum:13.0\npartial 1 on 0",
     "draft after actions: use 0: the loop has no such operand, or there is no such actor"},
    {"actions", "%sum:12.1 part 1\n", "%sum:12.1 part 1\nrefresh %embedding.weight\n",
     "draft after actions: refresh: the draft has what only this pass makes, which has not run"},
    {"actions", "%sum:12.1 part 1\n", "%sum:12.1 part 1\nfree %tokens.0 on 0 after 2\n",
     "draft after actions: frees: the draft has what only this pass makes, which has not run"},
    {"actions", "partial 1 on 0", "use 99 on 0 %sum:13.0\npartial 1 on 0",
     "draft after actions: use 99: the loop has no such operand, or there is no such actor"},
    {"actions", "after actions", "after action",
     "lowering has no pass \"action\"\n"
     "  its passes: blocks, actions, offload, reduce, before, after, refresh, devices, steps, waves, versions, lookups, "
     "workers, axes, transfers, order, frees\n"
     "  hint: did you mean \"actions\"?"},
    {"after", "after after", "after before", "draft after before: instance %embedding.weight of 0: its home is 0, there are 2"},
    {"after", "state 0 on 0 (", "state 0 on 0 copy (",
     "draft after after: state %embedding.weight: 0 devices own it\n  hint: each state has one owner, others have copies"},
    {"after", "instance %layers.0.weight", "instance %other state 0 on 1 named \"embedding.weight\" (f32[16,8])\ninstance %layers.0.weight",
     "draft after after: state %embedding.weight: 2 devices own it\n  hint: each state has one owner, others have copies"},
    {"after", "update %first:layers.1.bias, update %step)\n", "update %first:layers.1.bias, update %step)\nuse 0 on 0 %after:28\n",
     "draft after after: loop ends: the pass after has used them up"},
    {"after", "update %first:layers.1.bias, update %step)\n",
     "update %first:layers.1.bias, update %step)\npartial 0 on 0 %after:28 part 0\n",
     "draft after after: loop ends: the pass after has used them up"},
    {"refresh", "update %first:layers.1.bias, update %step)\n", "update %first:layers.1.bias, update %step)\nrefresh %after:28\n",
     "draft after refresh: refresh of %after:28 of 0: it is no state with a home"},
    {"after", "-> () port 0", "-> () port 3", "draft after after: actor 0, run 7: it gives no output of the step's 3"},
    {"after", "-> () port 0", "-> ()", "draft after after: actor 0, run 7: it gives no output of the step's 3"},
    {"after", "actor 1\n", "actor 1\n  place 1U\n", "draft after after: actor 1, run 0 (1U): nothing came in the place of it"},
    {"after", "\n  output (", "\n  output (%step, ", "draft after after: actor 0, run 7: it gives no output of the step's 3"},
    {"transfers", "transfer %F0:7.0 from 0 to 1", "transfer %F0:7.0 from 1 to 0",
     "draft after transfers: transfer of %F0:7.0 of 0 to 0: it goes from no home to no other device"},
    {"transfers", "transfer %F0:7.0 from 0 to 1 #0 after 0 before 0\n", "",
     "draft after transfers: actor 1, run 0 (1F0): it reads %F0:7.0 of 0, which no transfer brings before"},
    {"transfers", "transfer %F0:7.0 from 0 to 1", "transfer %F0:7.0 from 0 to 0",
     "draft after transfers: transfer of %F0:7.0 of 0 to 0: it goes from no home to no other device"},
    {"transfers", "transfer %F0:7.0 from 0 to 1", "transfer %F0:7.0 from 0 to 5",
     "draft after transfers: transfer of %F0:7.0 of 0 to 5: it goes from no home to no other device"},
    {"transfers", "#0 after 0 before 0", "#0 after 0 before 1",
     "draft after transfers: actor 1, run 0 (1F0): it reads %F0:7.0 of 0, which no transfer brings before"},
    {"transfers", "#0 after 0 before 0", "#0 after 0 before 99",
     "draft after transfers: transfer of %F0:7.0 of 0 to 1: there is no such run"},
    {"transfers", "transfer %F0:7.1 from 0 to 1 #1 after 1", "transfer %F0:7.1 from 0 to 1 #1 after 0",
     "draft after transfers: transfer of %F0:7.1 of 0 to 1: it is sent before it is written"},
    {"transfers", "transfer %F0:7.1 from 0 to 1 #1 after 1", "transfer %F0:7.1 from 0 to 1 #1 after 99",
     "draft after transfers: transfer of %F0:7.1 of 0 to 1: there is no such run"},
    {"transfers", "transfer %F0:7.1 ", "transfer %F0:7.0 ", "draft after transfers: transfer of %F0:7.0 of 0 to 1: it is sent there twice"},
    {"transfers", "after transfers", "after devices",
     "draft after devices: transfers: the draft has what only this pass makes, which has not run"},
    {"frees", "free %tokens.0 on 0 after 2\n", "", "draft after frees: actor 0, run 0 (0F0): it touches %tokens.0, which is never freed"},
    {"frees", "free %tokens.0 on 0 after 2", "free %tokens.0 on 0 after 1",
     "draft after frees: actor 0, run 2 (0B0): it touches %tokens.0, which is freed before"},
    {"frees", "free %tokens.0 on 0 after 2", "free %tokens.0 on 0 after 99",
     "draft after frees: free of %tokens.0 on 0: there is no such run"},
    {"frees", "free %tokens.0 on 0 after 2", "free %tokens.0 on 5 after 2",
     "draft after frees: free of %tokens.0 on 5: there is no such run"},
    {"frees", "free %B1:10.0 on 1 after 3\n", "",
     "draft after frees: actor 1, run 2 (1B0): it touches %B1:10.0 of 1, which is never freed"},
    {"frees", "free %tokens.0 on 0 after 2", "free %embedding.weight on 0 after 2",
     "draft after frees: free of %embedding.weight of 0 on 0: states are not freed"},
    {"frees", "free %tokens.0 on 0 after 2", "free %F0:7.0 on 0 after 3",
     "draft after frees: free of %F0:7.0 of 0 on 0: it is freed twice"},
};

// Mistakes in a draft in which devices hold blocks in shares.
const Wrong kWrongShares[] = {
    {"actions", "flat (f32[16,8], f32[8,8], f32[8])", "flat (f32[16,8], f32[8,8])",
     "draft after actions: instance %block:1.0.share of 0: it is 3 members of a block, and has 2 types"},
    {"actions", "(%block:1.0.share) -> (store %block:1.0)", "(%block:1.0.share, %block:1.0.share) -> (store %block:1.0)",
     "draft after actions: actor 0, run 1 (0UNSHARD): all_gather of 2 instances to 1"},
    {"actions", "sharded state 0 1 0", "sharded state 11 1 0", "draft after actions: sharded state 11: the step has 11 states"},
    {"actions", "parameters (3, 4)", "parameters (3, 12)", "draft after actions: sharded state 12: the step has 11 states"},
    {"actions", "sharded result 1 1 0", "sharded result 6 1 0", "draft after actions: sharded result 6: the loop has no such result"},
    {"devices", " in 0\n", " in 2\n", "draft after devices: actor 0, run 1 (0UNSHARD): there is no group 2"},
    {"devices", " in 0\n", "\n", "draft after devices: actor 0, run 1 (0UNSHARD): there is no group -1"},
    {"devices", "\nactor 3\n", "\n", "draft after devices: rows: there are 3, the table and its groups have 4"},
};

void expect_refused(const LowerInput& input, const Wrong& wrong) {
  Draft draft;
  run_passes(input, draft, wrong.after);
  std::string text = print(draft);
  const std::size_t place = text.find(wrong.from);
  ASSERT_NE(place, std::string::npos) << wrong.after << ": " << wrong.from;
  text.replace(place, std::string_view(wrong.from).size(), wrong.to);
  Lowering begun;
  begun.push_back(begin_table(input));
  EXPECT_EQ(message_of([&] { with_drafts(begun, {parse_draft(text)}); }), wrong.message);
}

TEST(WrongDrafts, AreRefused) {
  const LowerInput whole = perceptron(), shared = perceptron(kSharded, {.devices = {2, 2}, .zero = 3});
  for (const Wrong& wrong : kWrongs) expect_refused(whole, wrong);
  for (const Wrong& wrong : kWrongShares) expect_refused(shared, wrong);
}

// Actor 0 waits for the backward of micro-batch 0, for which actor 1 waits for the forward of micro-batch 1.
TEST(WrongDrafts, WhoseActorsWaitForEachOtherAreRefused) {
  const LowerInput input = perceptron();
  Draft draft;
  run_passes(input, draft, "actions");
  std::swap(draft.actors[0][1], draft.actors[0][2]);
  EXPECT_EQ(message_of([&] { verify(input, draft); }), "draft after actions: actor 0, run 1 (0B0): the actors wait for each other here");
}

// Text behind the first line of a draft, and what reading says of a column of the text's last line.
struct Unreadable {
  std::string text;
  int column;
  std::string message;
  std::string hint = {};  // with its line break
};

TEST(WrongDrafts, ThatCannotBeReadAreRefused) {
  const std::string task = "task @F0\ngraph @F0(%x: f32[2]) -> (f32[2]) {\n  return %x\n}\n", block = "block 0 (f32[2])\n";
  const std::string sections =
      "expected task, block, sharded, group, whole, instance, actor, use, partial, refresh, transfer, free, another draft or the end (in "
      "this order), or a run of an actor";
  const Unreadable unreadable[] = {
      {"actor 1", 7, "expected actor 0"},
      {"block 1 (f32[2])", 7, "expected block 0"},
      {"group 1 (0, 1)", 7, "expected group 0"},
      {"instance %x made (f32[2])", 13, "expected computed, data, state"},
      {"instance %x computed on 0 (f32[2])\ninstance %x computed on 1 (f32[2])", 10, "a second instance named %x"},
      {task + "task @F0", 6, "a second task named @F0"},
      {"instance %x computed on 0 (f31[2])", 28, "\"f31\" is no dtype", "\n  hint: known: f64 f32 bf16 f16 i64 i32 bool"},
      {"instance %x computed on 0 (f32[-2])", 28, "this shape has a negative size or more bytes than 63 bits count"},
      {"instance %x computed on -1 (f32[2])", 25, "expected a number from 0 to 2147483647, found -1"},
      {"instance %x computed on 2147483648 (f32[2])", 25, "expected a number from 0 to 2147483647, found 2147483648"},
      {"instance %x computed on 0 room 0 (f32[2])", 32, "expected a number from 1 to 1152921504606846976, found 0"},
      {"instance %x computed on 0 block 0 members (0) whole (f32[2])", 33, "there is no block 0"},
      {block + "instance %x computed on 0 block 0 members (1) whole (f32[2])", 44, "expected a number from 0 to 0, found 1"},
      {block + "instance %x computed on 0 block 0 members (0) half (f32[2])", 47, "expected whole, flat"},
      {block + "sharded result 0 1 0", 18, "there is no block 1"},
      {block + "sharded state 0 0 1", 19, "expected a number from 0 to 0, found 1"},
      {"actor 0\n  run 0F0 @F0() -> ()", 11, "there is no task @F0"},
      {task + "instance %x computed on 0 (f32[2])\nactor 0\n  run @F0(%x) -> (put %x)", 19, "expected store, add, update"},
      {"actor 0\n  place 0X1", 10, "unknown kind of action \"X\""},
      {"actor 0\n  place 0F1x", 11, "expected a micro-batch, found 1x"},
      {"actor 0\n  place 0F99999999999", 11, "expected a micro-batch, found 99999999999"},
      {"actor 0\n  sent () -> ()", 3, sections},
      {"frees 3", 1, sections},
  };
  for (const Unreadable& u : unreadable) {
    const std::vector<std::string> lines = split(u.text, '\n');
    EXPECT_EQ(message_of([&] { parse_draft("penstock draft 1\n" + u.text + "\n"); }),
              concat("draft:", lines.size() + 1, ":", u.column, ": ", u.message, "\n  ", lines.back(), "\n",
                     std::string(static_cast<std::size_t>(u.column) + 1, ' '), "^ near here", u.hint));
  }
  EXPECT_EQ(message_of([] { parse_draft("penstock program 1\n"); }),
            "draft:1:1: this is a penstock program, not a penstock draft\n  penstock program 1\n  ^ near here");
  EXPECT_EQ(
      message_of(
          [&] { parse_draft("penstock draft 1\n" + task + "instance %tokens data 0 (f32[2])\nactor 0\n  run 0F0 @F0(%token) -> ()\n"); }),
      "draft:8:15: there is no instance %token\n    run 0F0 @F0(%token) -> ()\n                ^ near here\n  hint: did you mean %tokens?");
}

// Drafts that are read must be all that there are after a pass, each where it belongs.
TEST(WrongDrafts, ThatAreNotThoseOfTheLoweringAreRefused) {
  Lowering begun;
  begun.push_back(begin_table(perceptron()));
  const std::string one = "penstock draft 1\n", other = "penstock draft 1\nof member 1 worker 0 step 0\n";
  EXPECT_EQ(
      message_of([&] { with_drafts(begun, parse_drafts(other)); }),
      "draft 0 is not that of member 0, worker 0, step 0\n  after no pass there is one for each, in this order\n  hint: read all drafts "
      "of one lowering");
  EXPECT_EQ(message_of([&] { with_drafts(begun, parse_drafts(one + other)); }),
            "there are 2 drafts, and 1 are read\n  hint: read one lowering");
  EXPECT_EQ(message_of([&] { with_drafts(begun, parse_drafts(one + "whole (7)\n")); }),
            "a draft has ports of inputs that are no data of the step");
  EXPECT_EQ(message_of([&] { parse_draft(one + other); }), "draft has 2 drafts\n  hint: read them by parse_drafts");
}

}  // namespace
}  // namespace penstock
