// SPDX-License-Identifier: Apache-2.0
// Programs that are made wrong behind the verifier's back: each is refused before it runs, or it gives what the right one gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "program/piece.h"
#include "program/verify.h"
#include "support/drawn_programs.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/random_program.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::message_of;
using test::Random;

std::size_t below(Random& random, std::size_t size) {
  return static_cast<std::size_t>(draw(random, 0, static_cast<int>(size) - 1));
}

// Every place is gone.
bool without_places(Random&, Program& program) {
  for (DeviceProgram& device : program.devices)
    for (Slot& slot : device.slots) slot.offset = -1;
  return true;
}

bool without_one_place(Random& random, Program& program) {
  std::vector<Slot>& slots = program.devices[below(random, program.devices.size())].slots;
  if (slots.empty()) return false;
  slots[below(random, slots.size())].offset = -1;
  return true;
}

bool with_less_scratch(Random& random, Program& program) {
  Task& task = program.tasks[below(random, program.tasks.size())];
  if (task.scratch == 0) return false;
  task.scratch = coin(random, 0.5) ? 0 : task.scratch - kAlignment;
  for (DeviceProgram& device : program.devices) {
    device.scratch_bytes = 0;
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::run) device.scratch_bytes = std::max(device.scratch_bytes, program.tasks[i.task.index()].scratch);
  }
  return true;
}

const Slot& state_of(Random& random, const Program& program) {
  std::vector<const Slot*> states;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      if (holds_state(slot.kind)) states.push_back(&slot);
  return *states[below(random, states.size())];
}

// One more slot for a state, which nobody uses: on a device that has one, or on another.
bool with_a_state_once_more(Random& random, Program& program) {
  Slot slot = state_of(random, program);
  DeviceProgram& device = program.devices[below(random, program.devices.size())];
  slot.name = "once more";
  slot.kind = SlotClass::copy;
  slot.offset = device.state_bytes;
  device.state_bytes += slot_bytes(slot);
  device.slots.push_back(std::move(slot));
  return true;
}

// Every part of it that a device owns is a copy.
bool without_an_owner(Random& random, Program& program) {
  const std::string tensor = parse_piece(state_of(random, program).names[0]).tensor;
  for (DeviceProgram& device : program.devices)
    for (Slot& slot : device.slots)
      if (slot.kind == SlotClass::state && parse_piece(slot.names[0]).tensor == tensor) slot.kind = SlotClass::copy;
  return true;
}

void number_transfers(Program& program) {
  for (DeviceProgram& device : program.devices) {
    std::map<std::pair<Opcode, std::int32_t>, std::int32_t> next;
    for (Instruction& i : device.instructions)
      if (i.opcode == Opcode::send || i.opcode == Opcode::recv) i.tag = next[{i.opcode, i.peer}]++;
  }
}

// Both ends of a copy's refresh are dropped, or come before all else.
bool with_another_refresh(Random& random, Program& program, bool early) {
  std::vector<std::pair<std::size_t, std::size_t>> refreshes;  // device, instruction
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::size_t at = 0; at < program.devices[d].instructions.size(); ++at) {
      const Instruction& i = program.devices[d].instructions[at];
      if (i.opcode == Opcode::recv && holds_state(program.devices[d].slots[i.slot.index()].kind)) refreshes.emplace_back(d, at);
    }
  if (refreshes.empty()) return false;
  const auto [to, at] = refreshes[below(random, refreshes.size())];
  std::vector<Instruction>& receiver = program.devices[to].instructions;
  const Instruction received = receiver[at];
  std::vector<Instruction>& sender = program.devices[static_cast<std::size_t>(received.peer)].instructions;
  const auto send = std::ranges::find_if(sender, [&](const Instruction& i) {
    return i.opcode == Opcode::send && i.peer == static_cast<std::int32_t>(to) && i.tag == received.tag;
  });
  const Instruction sent = *send;
  sender.erase(send);
  receiver.erase(receiver.begin() + static_cast<std::ptrdiff_t>(at));
  if (early) {
    sender.insert(sender.begin(), sent);
    receiver.insert(receiver.begin(), received);
  }
  number_transfers(program);
  return true;
}

// A result that goes over a copy goes to the copy of another state.
bool with_copies_exchanged(Random& random, Program& program) {
  DeviceProgram& device = program.devices[below(random, program.devices.size())];
  std::vector<Result*> updates;
  for (Result& result : device.results)
    if (device.slots[result.slot.index()].kind == SlotClass::copy) updates.push_back(&result);
  for (int attempt = 0; attempt < 10 && updates.size() > 1; ++attempt) {
    Result &a = *updates[below(random, updates.size())], &b = *updates[below(random, updates.size())];
    if (a.slot == b.slot || device.slots[a.slot.index()].parts != device.slots[b.slot.index()].parts) continue;
    std::swap(a.slot, b.slot);
    return true;
  }
  return false;
}

// The results of two steps, and the states after them.
struct Given {
  std::vector<std::map<std::string, std::vector<std::byte>>> outputs{};
  std::map<std::string, std::vector<std::byte>> states{};
  bool operator==(const Given&) const = default;
};

Given run(const Program& program) {
  auto cluster = make_thread_cluster(
      static_cast<int>(program.devices.size()), [](int) { return make_fake_executor({}); }, std::make_shared<test::HashData>());
  const std::uint64_t key = cluster->load(program);
  cluster->set_state({});
  Given given;
  for (std::int64_t step = 1; step <= 2; ++step) given.outputs.push_back(cluster->step(key, {step, 0, false, {}}).outputs);
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names)
        if (slot.kind == SlotClass::state) given.states[name] = cluster->state(name);
  return given;
}

TEST(MutatedPrograms, AreRefusedOrGiveTheSame) {
  struct Kind {
    const char* name;
    std::function<bool(Random&, Program&)> mutate;  // false: there is nothing to mutate
    bool always = true;                             // refused, whatever the program
    int made = 0, refused = 0;
  };
  std::vector<Kind> kinds = {
      {"without places", without_places},
      {"without a place", without_one_place},
      {"with less scratch", with_less_scratch},
      {"with a state once more", with_a_state_once_more, false},  // right where it is not updated
      {"without an owner", without_an_owner},
      {"without a refresh", [](Random& random, Program& program) { return with_another_refresh(random, program, false); }},
      {"with an early refresh", [](Random& random, Program& program) { return with_another_refresh(random, program, true); }},
      {"with copies exchanged", with_copies_exchanged},
  };
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    const Program program = seed % 2 == 0 ? test::of_random_table(random) : test::of_groups(random);
    const Given expected = run(program);
    for (Kind& kind : kinds) {
      SCOPED_TRACE(concat("seed ", seed, ", ", kind.name));
      Program mutant = program;
      if (!kind.mutate(random, mutant)) continue;
      mutant.name = "mutant";
      ++kind.made;
      Given given;
      const std::string message = message_of([&] { given = run(mutant); });
      kind.refused += message != "no error";
      EXPECT_TRUE(message != "no error" || given == expected);
    }
  }
  for (const Kind& kind : kinds) {
    EXPECT_GE(kind.made, 5) << kind.name;
    EXPECT_GE(kind.refused, kind.always ? kind.made : 1) << kind.name;
  }
}

std::string verdict(const Program& program) {
  return message_of([&] { verify(program, {ChannelModel::serial, -1}); });
}

// Device and number of each run that does nothing but add.
std::vector<std::pair<std::size_t, std::size_t>> adding_runs(const Program& program) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::size_t at = 0; at < program.devices[d].instructions.size(); ++at) {
      const Instruction& i = program.devices[d].instructions[at];
      const auto results = program.devices[d].results_of(i);
      const auto adds = [](const Result& result) { return result.mode == ResultMode::add; };
      if (i.opcode == Opcode::run && !results.empty() && std::ranges::all_of(results, adds)) out.emplace_back(d, at);
    }
  return out;
}

// Without the run, and with it twice, a sum has a term less or more, and nothing else is wrong.
void expect_to_count(const Program& program, std::size_t device, std::size_t at) {
  const Instruction run = program.devices[device].instructions[at];
  SCOPED_TRACE(print(program, program.devices[device], run));
  Program mutant = program;
  std::vector<Instruction>& instructions = mutant.devices[device].instructions;
  const auto place = static_cast<std::ptrdiff_t>(at);
  instructions.erase(instructions.begin() + place);
  const std::string dropped = verdict(mutant);
  EXPECT_TRUE(dropped.find(" is a sum of ") != std::string::npos && dropped.ends_with("of them here")) << dropped;
  instructions.insert(instructions.begin() + place, 2, run);
  const std::string doubled = verdict(mutant);
  EXPECT_TRUE(doubled.ends_with("and has them already")) << doubled;
}

TEST(MutatedPrograms, LackNoTermOfASum) {
  const std::uint64_t seed = test::drawn_seed(1686261205);
  const std::size_t wanted = test::rounds(test::is_soak() ? 2000 : 200);
  const std::size_t most = wanted > 200 ? 1000 : 4;  // runs of a program
  std::size_t programs = 0, mutants = 0;
  for (std::uint64_t trial = 0; programs < wanted && !HasFailure(); ++trial) {
    Random random(seed + trial);
    SCOPED_TRACE(concat("seed ", seed, ", trial ", trial));
    const std::optional<Program> program = trial % 8 == 0   ? test::of_random_table(random)
                                           : trial % 8 == 1 ? test::of_groups(random)
                                           : trial % 8 == 2 ? test::of_classes(random)
                                                            : test::of_mesh(random);
    if (!program) continue;
    std::vector<std::pair<std::size_t, std::size_t>> runs = adding_runs(*program);
    std::ranges::shuffle(runs, random);
    if (runs.size() > most) runs.resize(most);
    for (const auto& [device, at] : runs) expect_to_count(*program, device, at);
    programs += !runs.empty();
    mutants += 2 * runs.size();
  }
  std::printf("%zu mutants of %zu programs, seed %llu\n", mutants, programs, static_cast<unsigned long long>(seed));
}

}  // namespace
}  // namespace penstock
