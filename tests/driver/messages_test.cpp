// SPDX-License-Identifier: Apache-2.0
#include "driver/messages.h"

#include <gtest/gtest.h>

#include <random>

#include "support/errors.h"
#include "support/random_program.h"
#include "support/rounds.h"

namespace penstock {
namespace {

Command full_command() {
  Command command;
  command.kind = Command::Kind::set_state;
  command.body = std::make_shared<const Program>(test::random_program(1, 2, 20));
  command.program = hash(*command.body);
  command.source.kind = StateSource::Kind::safetensors;
  command.source.seed = -3;
  command.source.parameters = {{"w", {DType::bf16, {2, 3}}, {Initialiser::Kind::normal, 0.25}, false}, {"b", {DType::f32, {}}, {}, true}};
  command.source.path = "a/b";
  command.input = {7, 8, true, {3, 1, 4}, {0, 2}, 3};
  command.record_spans = true;
  command.text = "folder";
  command.source.values["w"] = std::vector<std::byte>(12, std::byte{7});
  command.source.files["b"] = {"part.safetensors", "bias"};
  command.results.tensors["loss"] = {{DType::f32, {2}}, std::vector<std::byte>(8, std::byte{3})};
  command.results.tensors["none"] = {{DType::f64, {0, 3}}, {}};
  command.results.text = "said";
  command.error = "it broke";
  command.names = {"snapshot0:w", "snapshot0:b"};
  return command;
}

Reply full_reply() {
  Reply reply;
  reply.error = "it broke\n  hint: mend it";
  reply.aborted = true;
  reply.lost = {3, 4};
  reply.outputs["loss"] = {std::byte{1}, std::byte{2}};
  reply.report = {7, 9, 0.5, 0.25, 100, 200, {{1, 2, false, 3, 4, 5}, {5, 6, true, 7, 8, 0}}};
  reply.file = "device-1.safetensors";
  reply.stopping = true;
  reply.state = {{"w[0:5]", std::vector<std::byte>(5, std::byte{9})}, {"w[9:10]", {std::byte{1}}, DType::boolean}};
  return reply;
}

std::vector<std::byte> encoded(const Command& command) {
  SentTasks nothing;
  return encode(command, nothing);
}
Command decoded(std::span<const std::byte> bytes) {
  SentTasks nothing;
  return decode_command(bytes, nothing);
}

TEST(Messages, ComeBackAsTheyWere) {
  for (const Command& command : {Command{}, full_command()}) {
    const auto bytes = encoded(command);
    const Command back = decoded(bytes);
    EXPECT_EQ(encoded(back), bytes);
    EXPECT_EQ(back.input.samples, command.input.samples);
    EXPECT_EQ(back.input.begins, command.input.begins);
    EXPECT_EQ(back.source.values, command.source.values);
    EXPECT_EQ(back.source.files.size(), command.source.files.size());
    EXPECT_EQ(back.results.text, command.results.text);
    EXPECT_EQ(back.results.tensors.size(), command.results.tensors.size());
    EXPECT_EQ(back.error, command.error);
    EXPECT_EQ(back.names, command.names);
    EXPECT_EQ(back.source.parameters.size(), command.source.parameters.size());
    EXPECT_EQ(back.body != nullptr, command.body != nullptr);
  }
  for (const Reply& reply : {Reply{}, full_reply()}) {
    const auto bytes = encode(reply);
    EXPECT_EQ(encode(decode_reply(bytes)), bytes);
    EXPECT_EQ(decode_reply(bytes).state, reply.state);
  }
}

// A program is sent without the tasks that went before, and is the same at the other end.
TEST(Messages, HaveATaskOnce) {
  Command command = full_command();
  Program smaller = *command.body;
  for (DeviceProgram& device : smaller.devices) device.instructions.clear();
  SentTasks sent, taken;
  const std::size_t first = encode(command, sent).size();
  const Command there = (sent = {}, decode_command(encode(command, sent), taken));
  command.body = std::make_shared<const Program>(smaller);
  command.program = hash(smaller);
  const auto bytes = encode(command, sent);
  const Command next = decode_command(bytes, taken);
  EXPECT_LT(bytes.size(), first / 2);
  EXPECT_EQ(print(*next.body), print(smaller));
  for (const TaskId t : next.body->tasks.ids()) EXPECT_EQ(next.body->tasks[t].graph.shared(), there.body->tasks[t].graph.shared());
  EXPECT_EQ(test::message_of([&] { decoded(bytes); }), "task t0 of the program that arrived was never sent");
}

// Both ends forget the same, so that what is sent again after long comes whole.
TEST(Messages, ForgetTasksAtBothEnds) {
  Command first = full_command(), other = full_command();
  other.body = std::make_shared<const Program>(test::random_program(2, 2, 20));
  other.program = hash(*other.body);
  SentTasks sent, taken;
  const auto send = [&](const Command& command) { return decode_command(encode(command, sent), taken); };
  const std::weak_ptr<const Graph> graph = send(first).body->tasks[TaskId(0)].graph.shared();
  for (int program = 0; program < 200; ++program) send(other);
  EXPECT_TRUE(graph.expired());
  EXPECT_EQ(print(*send(first).body), print(*first.body));
}

TEST(Messages, AnotherProgramThanItsHashSays) {
  Command command = full_command();
  ++command.program;
  EXPECT_EQ(test::message_of([&] { decoded(encoded(command)); }), "the program that arrived is not the one that was sent");
}

TEST(Messages, EveryCutIsAnError) {
  const auto command = encoded(full_command()), reply = encode(full_reply());
  for (std::size_t size = 0; size < command.size(); ++size) EXPECT_THROW(decoded(std::span(command).first(size)), Error) << size;
  for (std::size_t size = 0; size < reply.size(); ++size) EXPECT_THROW(decode_reply(std::span(reply).first(size)), Error) << size;
  EXPECT_EQ(test::message_of([&] { decoded(reply); }),
            "a message between devices is not readable\n  it has another kind or version\n"
            "  hint: all processes must be the same build of penstock");
}

TEST(Messages, RandomBytesNeverCrash) {
  std::mt19937_64 random(0);
  for (int round = 0; round < test::rounds(3000); ++round) {
    auto bytes = round % 2 ? encode(full_reply()) : encoded(full_command());
    for (int change = 0; change < 3; ++change) bytes[4 + random() % (bytes.size() - 4)] = static_cast<std::byte>(random());
    try {
      round % 2 ? (void)decode_reply(bytes) : (void)decoded(bytes);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace penstock
