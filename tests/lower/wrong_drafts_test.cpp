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

LowerInput perceptron() {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", 8}, {"context", 4}, {"vocabulary", 16}};
  OptimiserOptions sgd;
  sgd.name = "sgd";
  const auto model = make_model(builtin_models(), "mlp", sizes);
  return lower_input(training_step(*model, 4, 4, 2, sgd), parse_schedule("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n", "table.csv"));
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
    {"actions", "run 0F0 ", "run 7F0 ", "draft after actions: actor 0, run 0 (7F0): there is no such stage"},
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
    {"actions", "partial 1 on 0", "use 99 on 0 %sum:13.0\npartial 1 on 0",
     "draft after actions: use 99: the loop has no such operand, or there is no such actor"},
    {"actions", "after actions", "after action",
     "lowering has no pass \"action\"\n"
     "  its passes: blocks, actions, offload, reduce, before, after, refresh, devices, transfers, order, frees\n"
     "  hint: did you mean \"actions\"?"},
    {"after", "after after", "after before", "draft after before: instance %embedding.weight of 0: its home is 0, there are 2"},
    {"after", "state 0 on 0 (", "state 0 on 0 copy (",
     "draft after after: state %embedding.weight: 0 devices own it\n  hint: each state has one owner, others have copies"},
    {"after", "actor 1\n", "actor 1\n  place 1U\n", "draft after after: actor 1, run 0 (1U): nothing came in the place of it"},
    {"after", "\n  output (", "\n  output (%step, ", "draft after after: actor 0, run 7: it gives no output of the step's 3"},
    {"transfers", "transfer %F0:7.0 from 0 to 1", "transfer %F0:7.0 from 1 to 0",
     "draft after transfers: transfer of %F0:7.0 of 0 to 0: it goes from no home to no other device"},
    {"transfers", "transfer %F0:7.0 from 0 to 1 #0 after 0 before 0\n", "",
     "draft after transfers: actor 1, run 0 (1F0): it reads %F0:7.0 of 0, which no transfer brings before"},
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
    {"frees", "free %tokens.0 on 0 after 2", "free %embedding.weight on 0 after 2",
     "draft after frees: free of %embedding.weight of 0 on 0: states are not freed"},
    {"frees", "free %tokens.0 on 0 after 2", "free %F0:7.0 on 0 after 3",
     "draft after frees: free of %F0:7.0 of 0 on 0: it is freed twice"},
};

TEST(WrongDrafts, AreRefused) {
  const LowerInput input = perceptron();
  for (const Wrong& wrong : kWrongs) {
    Draft draft;
    run_passes(input, draft, wrong.after);
    std::string text = print(draft);
    const std::size_t place = text.find(wrong.from);
    ASSERT_NE(place, std::string::npos) << wrong.after << ": " << wrong.from;
    text.replace(place, std::string_view(wrong.from).size(), wrong.to);
    EXPECT_EQ(message_of([&] { lower_rest(input, parse_draft(text)); }), wrong.message);
  }
}

// Actor 0 waits for the backward of micro-batch 0, for which actor 1 waits for the forward of micro-batch 1.
TEST(WrongDrafts, WhoseActorsWaitForEachOtherAreRefused) {
  const LowerInput input = perceptron();
  Draft draft;
  run_passes(input, draft, "actions");
  std::swap(draft.actors[0][1], draft.actors[0][2]);
  EXPECT_EQ(message_of([&] { verify(input, draft); }), "draft after actions: actor 0, run 1 (0B0): the actors wait for each other here");
}

TEST(WrongDrafts, ThatCannotBeReadAreRefused) {
  const auto message = [](const std::string& text) { return message_of([&] { parse_draft("penstock draft 1\n" + text); }); };
  const std::string task = "task @F0\ngraph @F0(%x: f32[2]) -> (f32[2]) {\n  return %x\n}\n";
  EXPECT_EQ(message_of([] { parse_draft("penstock program 1\n"); }),
            "draft:1:1: this is a penstock program, not a penstock draft\n  penstock program 1\n  ^ near here");
  EXPECT_EQ(message("actor 1\n"), "draft:2:7: expected actor 0\n  actor 1\n        ^ near here");
  EXPECT_EQ(message("instance %x made (f32[2])\n"),
            "draft:2:13: expected computed, data, state\n  instance %x made (f32[2])\n              ^ near here");
  EXPECT_EQ(message("instance %x computed on 0 (f32[2])\ninstance %x computed on 1 (f32[2])\n"),
            "draft:3:10: a second instance named %x\n  instance %x computed on 1 (f32[2])\n           ^ near here");
  EXPECT_EQ(message("instance %x computed on 0 (f31[2])\n"),
            "draft:2:28: unknown dtype f31\n  instance %x computed on 0 (f31[2])\n                             ^ near here");
  EXPECT_EQ(
      message(task + "instance %tokens data 0 (f32[2])\nactor 0\n  run 0F0 @F0(%token) -> ()\n"),
      "draft:8:15: there is no instance %token\n    run 0F0 @F0(%token) -> ()\n                ^ near here\n  hint: did you mean %tokens?");
  EXPECT_EQ(message("actor 0\n  run 0F0 @F0() -> ()\n"),
            "draft:3:11: there is no task @F0\n    run 0F0 @F0() -> ()\n            ^ near here");
  EXPECT_EQ(message(task + "instance %x computed on 0 (f32[2])\nactor 0\n  run @F0(%x) -> (put %x)\n"),
            "draft:8:19: expected store, add, update\n    run @F0(%x) -> (put %x)\n                    ^ near here");
  EXPECT_EQ(message("actor 0\n  place 0X1\n"), "draft:3:10: unknown kind of action \"X\"\n    place 0X1\n           ^ near here");
  EXPECT_EQ(message("instance %x computed on 0 block 0 members (0) whole (f32[2])\n"),
            "draft:2:33: there is no block 0\n  instance %x computed on 0 block 0 members (0) whole (f32[2])\n"
            "                                  ^ near here");
  EXPECT_EQ(message("frees 3\n"),
            "draft:2:1: expected task, block, sharded, group, instance, actor, use, partial, refresh, transfer, free or the end (in this "
            "order), or a run of an actor\n  frees 3\n  ^ near here");
}

}  // namespace
}  // namespace penstock
