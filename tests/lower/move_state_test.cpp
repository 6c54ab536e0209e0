// SPDX-License-Identifier: Apache-2.0
// Moves of state: random pieces on random devices become others, to the bit; what is sent; what is refused.
#include "lower/move_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <numeric>
#include <set>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/random_pieces.h"
#include "support/random_program.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::KnownPiece;
using test::message_of;
using test::Random;

// A piece on a device, with its elements.
struct Lying {
  int device = 0;
  KnownPiece known;
  SlotClass kind = SlotClass::state;

  std::string name() const { return piece_name(known.piece); }
  TensorType type() const { return {DType::i32, known.shape}; }
};

// Random pieces of some tensors, which tile them, on random devices, and copies of some and of others.
struct RandomState {
  std::vector<Lying> parts;

  bool has(int device, const std::string& name) const {
    return std::ranges::any_of(parts, [&](const Lying& part) { return part.device == device && part.name() == name; });
  }
  void add(int device, const KnownPiece& known, SlotClass kind) {
    if (!has(device, piece_name(known.piece))) parts.push_back({device, known, kind});
  }
};

RandomState random_state(Random& random, const std::vector<Shape>& shapes, int devices) {
  RandomState out;
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    const std::string tensor = concat("t", t);
    for (const KnownPiece& piece : test::random_pieces(random, tensor, shapes[t])) {
      out.add(draw(random, 0, devices - 1), piece, SlotClass::state);
      while (coin(random, 0.3)) out.add(draw(random, 0, devices - 1), piece, SlotClass::copy);
    }
    if (coin(random, 0.3))
      for (const KnownPiece& piece : test::random_pieces(random, tensor, shapes[t]))
        if (coin(random, 0.5)) out.add(draw(random, 0, devices - 1), piece, SlotClass::copy);
  }
  return out;
}

Program program_of(const RandomState& state, int devices) {
  Program program;
  program.devices.resize(static_cast<std::size_t>(devices));
  for (const Lying& part : state.parts) {
    Slot& slot = program.devices[static_cast<std::size_t>(part.device)].slots.emplace_back();
    slot.name = part.name();
    slot.kind = part.kind;
    slot.parts = {part.type()};
    slot.names = {part.name()};
  }
  plan_memory(program);
  verify(program);
  return program;
}

// Element e of the tensor "t3" is 3000000 + e.
std::vector<std::int32_t> values_of(const KnownPiece& known) {
  std::vector<std::int32_t> out;
  for (const std::int64_t element : known.elements)
    out.push_back(std::stoi(known.piece.tensor.substr(1)) * 1000000 + static_cast<std::int32_t>(element));
  return out;
}

std::int64_t bytes_sent(const Program& program) {
  std::int64_t bytes = 0;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::send)
        for (const TensorType& part : device.slots[i.slot].parts) bytes += part.bytes();
  return bytes;
}

// The bytes of what is wanted and is on its device in no form.
std::int64_t bytes_elsewhere(const RandomState& held, const RandomState& wanted) {
  std::int64_t bytes = 0;
  for (const Lying& part : wanted.parts) {
    if (held.has(part.device, part.name())) continue;
    std::set<std::int64_t> missing(part.known.elements.begin(), part.known.elements.end());
    for (const Lying& other : held.parts)
      if (other.device == part.device && other.known.piece.tensor == part.known.piece.tensor)
        for (const std::int64_t element : other.known.elements) missing.erase(element);
    bytes += 4 * std::ssize(missing);
  }
  return bytes;
}

// Fake devices of which the test sees the memory, between the steps.
class OpenDevices {
 public:
  explicit OpenDevices(int devices) : executors_(static_cast<std::size_t>(devices)) {
    const auto make = [this](int device) {
      auto executor = make_fake_executor({static_cast<std::uint64_t>(device), std::chrono::microseconds(0)});
      executors_[static_cast<std::size_t>(device)] = executor.get();
      return executor;
    };
    cluster_ = make_thread_cluster(devices, make, std::make_shared<test::HashData>());
  }
  Cluster& operator*() { return *cluster_; }
  std::span<std::byte> memory(std::size_t device, SlotId slot) { return executors_[device]->address(slot); }

 private:
  std::vector<Executor*> executors_;
  std::unique_ptr<Cluster> cluster_;
};

// Whether the devices have what is wanted once the program has moved it there, and still what they had.
void expect_moved(const Program& move, const RandomState& held, const RandomState& wanted) {
  OpenDevices devices(static_cast<int>(move.devices.size()));
  const std::uint64_t key = (*devices).load(move);
  const auto each_slot = [&](const RandomState& state, const auto& act) {
    for (std::size_t d = 0; d < move.devices.size(); ++d)
      for (const SlotId slot : move.devices[d].slots.ids())
        for (const Lying& part : state.parts)
          if (part.device == static_cast<int>(d) && move.devices[d].slots[slot].names == std::vector{part.name()})
            act(part, devices.memory(d, slot), values_of(part.known));
  };
  for (std::size_t d = 0; d < move.devices.size(); ++d)
    for (const SlotId slot : move.devices[d].slots.ids()) std::ranges::fill(devices.memory(d, slot), std::byte{0xEE});
  each_slot(held, [](const Lying&, std::span<std::byte> memory, const std::vector<std::int32_t>& values) {
    std::memcpy(memory.data(), values.data(), 4 * values.size());
  });
  (*devices).step(key, {});
  std::size_t seen = 0;
  const auto compare = [&](const Lying& part, std::span<std::byte> memory, const std::vector<std::int32_t>& values) {
    ++seen;
    EXPECT_EQ(std::memcmp(memory.data(), values.data(), 4 * values.size()), 0) << part.name() << " on device " << part.device;
  };
  each_slot(held, compare);
  seen = 0;
  each_slot(wanted, compare);
  const auto missing = std::ranges::count_if(wanted.parts, [&](const Lying& part) { return !held.has(part.device, part.name()); });
  EXPECT_GE(static_cast<std::int64_t>(seen), missing);
}

TEST(MoveState, RandomPiecesBecomeOthers) {
  const std::uint64_t seed = test::drawn_seed();
  std::cout << "seed " << seed << "\n";
  for (std::uint64_t round = 0; round < test::rounds(500u); ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", round " << round);
    Random random(seed * 1000 + round);
    std::vector<Shape> shapes;
    for (int t = draw(random, 1, 3); t > 0; --t) shapes.push_back(test::random_sizes(random));
    const int before = draw(random, 1, 5), after = draw(random, 1, 5);
    const RandomState held = random_state(random, shapes, before), wanted = random_state(random, shapes, after);
    const Program move = move_state(held_by(program_of(held, before)), program_of(wanted, after));
    verify(move);
    verify(move, {ChannelModel::serial, -1});
    EXPECT_EQ(bytes_sent(move), bytes_elsewhere(held, wanted));
    if (!move.devices.empty()) expect_moved(move, held, wanted);
    if (testing::Test::HasFailure()) return;
  }
}

// A slice that takes the elements ahead of those that it is to take.
bool shift_a_slice(Program& move, Random& random) {
  std::vector<std::pair<TaskId, OpId>> slices;
  for (const TaskId task : move.tasks.ids())
    for (const OpId op : move.tasks[task].graph->ops.ids())
      if (const Op& slice = move.tasks[task].graph->ops[op]; slice.name == "slice" && attribute<std::int64_t>(slice, "start") > 0)
        slices.emplace_back(task, op);
  if (slices.empty()) return false;
  const auto [task, op] = slices[static_cast<std::size_t>(draw(random, 0, static_cast<int>(slices.size()) - 1))];
  Graph graph = *move.tasks[task].graph;
  for (const char* end : {"start", "end"}) graph.ops[op].attributes[end] = attribute<std::int64_t>(graph.ops[op], end) - 1;
  move.tasks[task].graph = graph;
  return true;
}

TEST(MoveState, AWrongOneIsRefused) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<Shape> shapes = {test::random_sizes(random), test::random_sizes(random)};
    const RandomState held = random_state(random, shapes, 3), wanted = random_state(random, shapes, 3);
    Program move = move_state(held_by(program_of(held, 3)), program_of(wanted, 3));
    if (!shift_a_slice(move, random)) continue;
    ++tried;
    EXPECT_NE(message_of([&] { verify(move); }).find("does not end the step with what the owner of state \"t"), std::string::npos);
  }
  EXPECT_GT(tried, 0);
}

// Programs of slots alone: "0 state f32[4] w[0:4]".
Program program_of(const std::vector<std::string>& slots, std::size_t devices) {
  std::vector<std::string> of(devices);
  for (const std::string& text : slots) {
    const std::size_t kind = text.find(' '), type = text.find(' ', kind + 1), name = text.find(' ', type + 1);
    std::string& device = of[std::stoul(text)];
    device += concat("  slot %s", device.size(), " ", text.substr(kind + 1, type - kind), "(", text.substr(type + 1, name - type),
                     quote(text.substr(name + 1)), ")\n");
  }
  std::string program = "penstock program 1\nprogram @p {microbatches=1}\n";
  for (std::size_t d = 0; d < devices; ++d) program += concat("device ", d, " {state_bytes=0, step_bytes=0, scratch_bytes=0}\n", of[d]);
  return parse_program(program);
}

std::string moved(const std::vector<std::string>& held, const std::vector<std::string>& wanted) {
  return message_of([&] { move_state(held_by(program_of(held, 3)), program_of(wanted, 3)); });
}

TEST(MoveState, WhatIsThereIsLeftThere) {
  const Program held = program_of({"0 state f32[4] w", "1 copy f32[4] w", "1 state f32[2] v"}, 3);
  EXPECT_TRUE(move_state(held_by(held), held).devices.empty());
  EXPECT_TRUE(move_state(held_by(held), program_of({"1 state f32[4] w"}, 2)).devices.empty());
}

// Both have sent nothing; then one has.
TEST(MoveState, ThoseThatHaveSentLessSend) {
  const Program held = program_of({"0 state f32[4] v", "1 copy f32[4] v", "0 state f32[4] w", "1 copy f32[4] w"}, 3);
  const Program move = move_state(held_by(held), program_of({"2 state f32[4] v", "2 state f32[4] w"}, 3));
  for (const std::size_t sender : {0u, 1u})
    EXPECT_EQ(std::ranges::count(move.devices[sender].instructions, Opcode::send, &Instruction::opcode), 1);
}

// Messages take what many parts want, and the rows of columns are one slice.
TEST(MoveState, IsFewMessagesAndOps) {
  const Program held = program_of({"0 state f32[512,4] w[0:4/8]", "1 state f32[512,4] w[4:8/8]", "0 state f32[4] v"}, 3);
  const Program move = move_state(held_by(held), program_of({"2 state f32[512,8] w", "2 state f32[4] v"}, 3));
  EXPECT_EQ(move.devices[2].instructions.size(), 5u);  // two receives, a run, two frees
  for (const Task& task : move.tasks) EXPECT_LE(task.graph->ops.size(), 8u) << print(*task.graph);
}

TEST(MoveState, RefusesWhatNobodyHolds) {
  EXPECT_EQ(moved({"0 state f32[4] w[0:4]", "1 state f32[4] w[4:8]"}, {"2 state f32[8] w"}), "no error");
  Program held = program_of({"0 state f32[4] w[0:4]", "1 state f32[2] w[4:6]", "2 state f32[2] w[6:8]"}, 3);
  std::vector<std::vector<HeldPiece>> parts = held_by(held);
  parts[1].clear();
  EXPECT_EQ(message_of([&] { move_state(parts, program_of({"2 state f32[8] w"}, 3)); }),
            "no device holds the elements [4:6] of state \"w\"\n  device 2 is to have them, in w\n  hint: begin again from a checkpoint");
  EXPECT_EQ(moved({}, {"0 state f32[8] w"}),
            "no device holds the elements [0:8] of state \"w\"\n  device 0 is to have them, in w\n  hint: begin again from a checkpoint");
}

TEST(MoveState, RefusesPiecesOfVeryManyRows) {
  EXPECT_EQ(moved({"0 state f32[4194305,1] w[0:1/2]", "0 state f32[4194305,1] w[1:2/2]"}, {"1 state f32[4194305,2] w"}),
            "a piece of a state has more than 4194304 rows\n  hint: split it along another dim, so that it can be moved");
}

TEST(MoveState, RefusesOtherTypes) {
  const auto message = [](std::string_view held, std::string_view wanted) {
    return concat("state \"w\" cannot go on from one program to the other\n  device 0 holds ", held, "\n  the next program has ", wanted,
                  " elements\n  hint: both programs must be of one model");
  };
  EXPECT_EQ(moved({"0 state f32[8] w"}, {"1 state f64[8] w"}), message("w as f32[8]", "w as f64[8], of 8"));
  EXPECT_EQ(moved({"0 state f32[8] w"}, {"1 state f32[2,4] w"}), message("w as f32[8]", "w as f32[2,4], of 8"));
  EXPECT_EQ(moved({"0 state f32[8] w"}, {"1 state f32[9] w[0:9]"}), message("w as f32[8]", "w[0:9] as f32[9], of 9"));
  EXPECT_EQ(moved({"0 state f32[2,4] w"}, {"1 state f32[8] w[0:8]"}), "no error");
}

}  // namespace
}  // namespace penstock
