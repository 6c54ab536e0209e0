// SPDX-License-Identifier: Apache-2.0
// Training that goes on with another program: a move of its state leads to the same bits as a checkpoint.
#include "lower/move_state.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/mesh.h"
#include "driver/training.h"
#include "models/registry.h"
#include "program/piece.h"
#include "state/checkpoint.h"
#include "support/temporary.h"
#include "torch/state_store.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using State = std::map<std::string, std::vector<std::byte>>;

// A part of a run that one program makes.
struct Part {
  Program program;
  StateSource fresh;
  std::shared_ptr<const DataSource> data;
};

Part part_of(const std::string& mesh, std::vector<std::string> settings) {
  for (const char* setting : {"layers=6", "width=8", "heads=2", "context=4", "vocabulary=12", "batch=12"}) settings.push_back(setting);
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  for (Override& axis : parse_mesh(mesh)) overrides.push_back(std::move(axis));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  return {compile_training(config, prepared), fresh_start(config, prepared).state,
          std::make_shared<RandomBatch>(data_of(config, *prepared.model), vocabulary_of(config))};
}

// Two steps of each part, and then the state; by each step its outputs.
struct Trained {
  State state{};
  std::vector<State> outputs{};
};

void make_steps(Cluster& cluster, std::uint64_t key, Trained& out) {
  for (int i = 0; i < 2; ++i) {
    StepInput input;
    input.step = std::ssize(out.outputs) + 1;
    out.outputs.push_back(cluster.step(key, input).outputs);
  }
}

Trained by_moves(const std::vector<Part>& parts) {
  Trained out;
  const auto cluster = test::make_test_cluster(5, parts[0].data);
  std::uint64_t before = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::uint64_t key = cluster->load(parts[p].program);
    if (p == 0) cluster->set_state(parts[0].fresh);
    if (p > 0) cluster->unload(before);
    make_steps(*cluster, before = key, out);
  }
  out.state = test::state_of(*cluster, parts.back().program);
  return out;
}

Trained by_checkpoints(const std::vector<Part>& parts) {
  Trained out;
  const test::TemporaryFolder folder;
  StateSource source = parts[0].fresh;
  for (const Part& part : parts) {
    const auto cluster = test::make_test_cluster(part.program.devices.size(), part.data);
    const std::uint64_t key = cluster->load(part.program);
    cluster->set_state(source);
    make_steps(*cluster, key, out);
    Checkpoint info;
    info.step = std::ssize(out.outputs);
    source = {.kind = StateSource::Kind::checkpoint};
    source.path = write_checkpoint(folder.path().string(), info, 1, [&](const std::string& to) { return cluster->save_state(to); });
    out.state = test::state_of(*cluster, part.program);
  }
  return out;
}

// No more is sent than what is wanted in another form or on another device.
void expect_little_is_sent(const Program& before, const Program& after) {
  const std::vector<std::vector<HeldPiece>> held = held_by(before), wanted = held_by(after);
  const auto is_there = [&](std::size_t device, const HeldPiece& piece) {
    return device < held.size() && std::ranges::find(held[device], piece.name, &HeldPiece::name) != held[device].end();
  };
  std::int64_t missing = 0, sent = 0;
  for (std::size_t d = 0; d < wanted.size(); ++d)
    for (const HeldPiece& piece : wanted[d])
      if (!is_there(d, piece)) missing += piece.type.bytes();
  for (const DeviceProgram& device : move_state(held, after).devices)
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::send)
        for (const TensorType& part : device.slots[i.slot].parts) sent += part.bytes();
  EXPECT_GT(sent, 0);
  EXPECT_LE(sent, missing);
}

void expect_same(const std::vector<Part>& parts) {
  for (std::size_t p = 1; p < parts.size(); ++p) expect_little_is_sent(parts[p - 1].program, parts[p].program);
  const Trained moved = by_moves(parts), resumed = by_checkpoints(parts);
  EXPECT_TRUE(moved.outputs == resumed.outputs);
  EXPECT_TRUE(moved.state == resumed.state);
}

TEST(MovedTraining, OverFourThreeFiveAndTwoDevicesIsAsByCheckpoints) {
  for (int zero = 0; zero < 4; ++zero) {
    SCOPED_TRACE(zero);
    const std::string share = concat("zero=", zero);
    expect_same({part_of("pipe=2,data=2", {share, "microbatches=3"}), part_of("pipe=3", {"microbatches=4"}),
                 part_of("pipe=5", {"schedule=gpipe", "microbatches=2"}), part_of("tensor=2", {"microbatches=2"})});
  }
}

TEST(MovedTraining, BetweenSharesPiecesAndChunksIsAsByCheckpoints) {
  expect_same({part_of("tensor=2", {"microbatches=3"}), part_of("pipe=2", {"schedule=interleaved-1f1b", "chunks=3", "microbatches=4"}),
               part_of("data=4", {"zero=3", "microbatches=3"}), part_of("data=3", {"zero=2", "microbatches=2"}),
               part_of("data=2,tensor=2", {"zero=1", "microbatches=2"}), part_of("pipe=1", {"microbatches=1"})});
}

TEST(StateStore, GivesBackWhatIsForgotten) {
  const auto device_with = [](const std::vector<std::pair<std::string, std::int64_t>>& states) {
    DeviceProgram device;
    for (const auto& [name, elements] : states) {
      Slot& slot = device.slots.emplace_back();
      slot.kind = SlotClass::state;
      slot.parts = {{DType::f32, {elements}}};
      slot.names = {name};
      slot.offset = device.state_bytes;
      device.state_bytes += slot_bytes(slot);
    }
    return device;
  };
  StateStore store;
  const auto place = [&](const DeviceProgram& device) {
    std::vector<std::byte*> addresses(device.slots.size());
    store.place(device, addresses);
    return addresses;
  };
  std::byte* const w = place(device_with({{"v", 1024}, {"w", 256}}))[1];
  *w = std::byte{7};
  store.forget({});
  EXPECT_EQ(store.bytes(), 5120);
  const DeviceProgram rest = device_with({{"w", 256}});
  EXPECT_EQ(place(rest)[0], w);
  store.forget({"v"});
  EXPECT_EQ(store.bytes_to_place(rest), 1024);
  EXPECT_EQ(*place(rest)[0], std::byte{7});
  EXPECT_EQ(store.bytes(), 1024);
}

}  // namespace
}  // namespace penstock
