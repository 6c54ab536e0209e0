// SPDX-License-Identifier: Apache-2.0
// Which of several devices' errors a step reports.
#include "driver/controller.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "driver/outputs.h"
#include "support/errors.h"
#include "support/random_program.h"

namespace penstock {
namespace {

Reply says(std::string error, std::vector<std::int32_t> lost = {}, bool aborted = false) {
  Reply reply;
  reply.error = std::move(error);
  reply.lost = std::move(lost);
  reply.aborted = aborted;
  return reply;
}

// Answers every command with the same replies.
class Canned : public Carrier {
 public:
  explicit Canned(std::vector<Reply> replies) : replies_(std::move(replies)) {}
  int devices() const override { return static_cast<int>(replies_.size()); }
  std::vector<Reply> exchange(const std::vector<const Command*>&) override { return replies_; }

 private:
  std::vector<Reply> replies_;
};

std::string reported(std::vector<Reply> replies) {
  return test::message_of([&] { make_cluster(std::make_unique<Canned>(std::move(replies)))->set_state({}); });
}

const Reply kSilent = says("device 2 was lost: it did not answer", {2}, true);

TEST(Controller, ReportsTheErrorNearestToTheCause) {
  EXPECT_EQ(reported({{}, says("b")}), "b");
  EXPECT_EQ(reported({says("a", {}, true), says("b")}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b", {2}), kSilent}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b")}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b", {0})}), "a");
  EXPECT_EQ(reported({says("a", {1}), says("b", {1})}), "b");
  EXPECT_EQ(reported({{}, {}, kSilent}), "device 2 was lost: it did not answer");
}

// Members of a group blame each other; the one that is gone says nothing, the one that failed says why.
TEST(Controller, OfAGroupReportsWhoFailedOrDidNotAnswer) {
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), kSilent}), "a\n  device 2 was lost: it did not answer");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c")}), "c");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c", {3}), {}}), "c");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c", {0, 1})}), "a");
}

TEST(Controller, NumbersAnew) {
  using Numbers = std::vector<std::int32_t>;
  EXPECT_EQ(numbered_anew(4, {}, 0), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(numbered_anew(4, {1}, 0), (Numbers{0, 3, 2}));
  EXPECT_EQ(numbered_anew(4, {3}, 0), (Numbers{0, 1, 2}));
  EXPECT_EQ(numbered_anew(4, {0, 1}, 0), (Numbers{3, 2}));
  EXPECT_EQ(numbered_anew(4, {0, 3}, 0), (Numbers{2, 1}));
  EXPECT_EQ(numbered_anew(4, {0, 1, 3}, 0), (Numbers{2}));
  EXPECT_EQ(numbered_anew(4, {1}, 1), (Numbers{0, -1, 2, 3}));
  EXPECT_EQ(numbered_anew(4, {1, 3}, 1), (Numbers{0, -1, 2}));
  EXPECT_EQ(numbered_anew(4, {1}, 2), (Numbers{0, -1, 2, 3, -1}));
  EXPECT_EQ(numbered_anew(3, {0, 1, 2}, 2), (Numbers{-1, -1}));
  EXPECT_EQ(numbered_anew(3, {0, 1, 2}, 0), Numbers{});
}

// Notes the values that each device is sent.
class Noting : public Carrier {
 public:
  Noting(int devices, std::vector<std::map<std::string, std::vector<std::byte>>>& values) : devices_(devices), values_(values) {}
  int devices() const override { return devices_; }
  std::vector<Reply> exchange(const std::vector<const Command*>& commands) override {
    for (std::size_t d = 0; d < commands.size(); ++d)
      if (commands[d] && commands[d]->kind == Command::Kind::set_state)
        values_[d].insert(commands[d]->source.values.begin(), commands[d]->source.values.end());
    return std::vector<Reply>(commands.size());
  }

 private:
  int devices_;
  std::vector<std::map<std::string, std::vector<std::byte>>>& values_;
};

std::vector<std::byte> bytes_of(const std::vector<std::int32_t>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

TEST(Controller, SendsEachDeviceTheValuesThatItHas) {
  std::vector<std::map<std::string, std::vector<std::byte>>> sent(3);
  const std::unique_ptr<Cluster> cluster = make_cluster(std::make_unique<Noting>(3, sent));
  cluster->load(parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=128, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (i32[2] "w[0:2]")
  slot %v state @64 (i32[1] "v")
device 1 {state_bytes=64, step_bytes=0, scratch_bytes=0}
  slot %w state @0 (i32[3] "w[2:5]")
device 2 {state_bytes=0, step_bytes=0, scratch_bytes=0}
)"));
  StateSource source;
  source.kind = StateSource::Kind::values;
  source.values = {{"w", bytes_of({0, 1, 2, 3, 4})}, {"v", bytes_of({9})}};
  cluster->set_state(source);
  EXPECT_EQ(sent[0], (std::map<std::string, std::vector<std::byte>>{{"v", bytes_of({9})}, {"w[0:2]", bytes_of({0, 1})}}));
  EXPECT_EQ(sent[1], (std::map<std::string, std::vector<std::byte>>{{"w[2:5]", bytes_of({2, 3, 4})}}));
  EXPECT_TRUE(sent[2].empty());
  source.values = {{"w", std::vector<std::byte>(8)}};
  EXPECT_EQ(test::message_of([&] { cluster->set_state(source); }),
            "the value of \"w\" has 8 bytes, the program needs its elements [2:5] of i32");
}

TEST(Controller, RefusesAProgramWithoutAMemoryPlan) {
  const Program program = parse_program(R"(penstock program 1
program @p {microbatches=1}
device 0 {state_bytes=0, step_bytes=0, scratch_bytes=0}
  slot %w state (f32[4] "w")
)");
  EXPECT_EQ(test::message_of([&] { make_cluster(std::make_unique<Canned>(std::vector<Reply>(1)))->load(program); }),
            "program p has no memory plan, so it cannot run\n  its slots have no places\n"
            "  hint: lower it again: penstock compile --emit program plans its memory");
}

// Replies come from other processes: whatever they say of their sizes and instructions is looked at.
TEST(Controller, BelievesNoReply) {
  const Program program = test::random_program(0, 1, 1);
  const auto step = [&](const Reply& reply) {
    return test::message_of([&] {
      const std::unique_ptr<Cluster> cluster = make_cluster(std::make_unique<Canned>(std::vector<Reply>{reply}));
      output_values(program, cluster->step(cluster->load(program), {}), program.outputs.at(0).name);
    });
  };
  Reply reply;
  reply.outputs[program.outputs.at(0).name] = {std::byte{1}};
  EXPECT_EQ(step(reply),
            concat("output ", quote(program.outputs[0].name), " came with 1 bytes, its type is ", program.outputs[0].type.text()));
  reply.report.spans.resize(1);
  reply.report.spans[0].instruction = 1000;
  EXPECT_EQ(step(reply), concat("device 0 reports on instruction 1000 of ", program.devices[0].instructions.size()));

  const auto state = [&](std::vector<OwnedState> owned) {
    Reply answer;
    answer.state = std::move(owned);
    return test::message_of([&] { make_cluster(std::make_unique<Canned>(std::vector<Reply>{answer}))->state("w"); });
  };
  EXPECT_EQ(state({{"w[0:2]", std::vector<std::byte>(8)}, {"w[2:4]", std::vector<std::byte>(8)}}), "no error");
  EXPECT_EQ(state({{"w[0:2]", std::vector<std::byte>(8)}, {"w[2:4]", std::vector<std::byte>(7)}}), "state \"w[2:4]\" came with 7 bytes");
  EXPECT_EQ(state({{"w[0:2]", std::vector<std::byte>(8)}, {"w[3:4]", std::vector<std::byte>(4)}}),
            "no device gave the elements [2:3] of state \"w\"");

  const auto strided = [&](const std::string& first, std::size_t bytes, const std::string& second, std::size_t others) {
    return state({{first, std::vector<std::byte>(bytes), DType::bf16}, {second, std::vector<std::byte>(others), DType::bf16}});
  };
  EXPECT_EQ(strided("w[0:2/3]", 8, "w[2:3/3]", 4), "no error");
  EXPECT_EQ(strided("w[0:2/3]", 8, "w[2:3/3]", 2), "state \"w[2:3/3]\" came with 2 bytes");
  EXPECT_EQ(strided("w[0:2/3]", 7, "w[2:3/3]", 4), "state \"w[0:2/3]\" came with 7 bytes");
  EXPECT_EQ(strided("w[0:2/3]", 8, "w[2:3/3][1:2]", 2), "no device gave the elements [2:3] of state \"w\"");
  EXPECT_EQ(strided("w[0:2/4]", 8, "w[2:3/4]", 4), "no device gave the elements [3:4] of state \"w\"");
  EXPECT_EQ(strided("w[0:1/4611686018427387904]", 8, "w[1:2]", 2), "no device gave the elements [2:4611686018427387904] of state \"w\"");
}

}  // namespace
}  // namespace penstock
