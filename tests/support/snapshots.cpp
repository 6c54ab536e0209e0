// SPDX-License-Identifier: Apache-2.0
#include "support/snapshots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "lower/snapshot.h"
#include "program/snapshot_name.h"

namespace penstock::test {
namespace {

using Tensors = std::map<std::string, std::vector<std::byte>>;

// By part what its owners have.
Tensors owned_by(Cluster& cluster, const Program& program) {
  Tensors out;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        if (slot.kind == SlotClass::state) out[name] = cluster.state(name);
  return out;
}

StepInput input_of(std::size_t step) {
  StepInput input;
  input.step = static_cast<std::int64_t>(step) + 1;
  for (std::int64_t sample = 0; sample < 64; ++sample) input.samples.push_back(100 * input.step + sample);
  return input;
}

// By device what snapshots taken now have. A copy of a state may differ from what its owner has where runs do not compute, so each device's
// own is read, where the host can.
std::vector<Tensors> wanted_now(const Program& with, int generation, const std::vector<Executor*>& executors, const Tensors& owned) {
  std::vector<Tensors> out(executors.size());
  for (std::size_t d = 0; d < executors.size(); ++d) {
    std::map<std::string, SharedTensor> own;
    for (const Slot& slot : with.devices[d].slots)
      for (const std::string& name : slot.names)
        if (holds_state(slot.kind)) own[name] = executors[d]->state(name);
    for (const Slot& slot : with.devices[d].slots)
      for (const std::string& name : slot.names) {
        if (slot.kind != SlotClass::snapshot || parse_snapshot_name(name)->generation != generation) continue;
        const std::string state = parse_snapshot_name(name)->state;
        const std::vector<std::byte>& owners = owned.at(state);
        const std::byte* const here = own[state].memory.get();
        out[d][name] = here ? std::vector<std::byte>(here, here + owners.size()) : owners;
      }
  }
  return out;
}

void expect_kept(const std::vector<Executor*>& executors, const std::vector<Tensors>& wanted) {
  for (std::size_t d = 0; d < wanted.size(); ++d)
    for (const auto& [name, bytes] : wanted[d]) {
      const SharedTensor found = executors[d]->state(name);
      ASSERT_TRUE(found.memory) << name << " on device " << d;
      ASSERT_EQ(static_cast<std::size_t>(found.type.bytes()), bytes.size()) << name << " on device " << d;
      EXPECT_TRUE(std::ranges::equal(std::span(found.memory.get(), bytes.size()), bytes)) << name << " on device " << d;
    }
}

// On two devices, where there are two.
void expect_kept_twice(const Program& with) {
  std::map<std::string, std::size_t> kept;
  for (const DeviceProgram& device : with.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        if (slot.kind == SlotClass::snapshot) ++kept[name];
  for (const DeviceProgram& device : with.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        for (int g = 0; slot.kind == SlotClass::state && g < kGenerations; ++g)
          EXPECT_EQ(kept[snapshot_name(g, name)], std::min<std::size_t>(with.devices.size(), 2)) << name;
}

}  // namespace

void expect_snapshots(const Program& program, const ExecutorFactory& executor, const Connect& connect, const StateSource& state) {
  const std::vector<int> generations = {-1, 0, 1, -1, 0, 1, 0};
  std::vector<Tensors> outputs, states;
  {
    const std::unique_ptr<Cluster> cluster = connect(executor);
    const std::uint64_t key = cluster->load(program);
    cluster->set_state(state);
    for (std::size_t step = 0; step < generations.size(); ++step) {
      states.push_back(owned_by(*cluster, program));
      outputs.push_back(cluster->step(key, input_of(step)).outputs);
    }
    states.push_back(owned_by(*cluster, program));
  }
  const auto devices = static_cast<int>(program.devices.size());
  std::vector<Program> with;
  for (int g = 0; g < kGenerations; ++g) with.push_back(with_snapshot(program, g, buddies_of(devices, 1)));
  expect_kept_twice(with[0]);
  std::vector<Executor*> executors(program.devices.size());
  const std::unique_ptr<Cluster> cluster = connect([&](int device) {
    std::unique_ptr<Executor> made = executor(device);
    executors[static_cast<std::size_t>(device)] = made.get();
    return made;
  });
  const std::uint64_t plain = cluster->load(program);
  cluster->set_state(state);
  std::vector<std::vector<Tensors>> kept(kGenerations);
  for (std::size_t step = 0; step < generations.size() && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step << ", generation " << generations[step]);
    const int generation = generations[step];
    std::uint64_t key = plain;
    if (generation >= 0) {
      const Program& taking = with[static_cast<std::size_t>(generation)];
      key = cluster->load(taking);
      kept[static_cast<std::size_t>(generation)] = wanted_now(taking, generation, executors, states[step]);
    }
    EXPECT_TRUE(cluster->step(key, input_of(step)).outputs == outputs[step]);
    for (const std::vector<Tensors>& wanted : kept) expect_kept(executors, wanted);
    EXPECT_TRUE(owned_by(*cluster, program) == states[step + 1]);
  }
}

}  // namespace penstock::test
