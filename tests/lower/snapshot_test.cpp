// SPDX-License-Identifier: Apache-2.0
// A snapshot is what the state was when the step began, on two devices, and the step is the same.
#include "lower/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "driver/thread_cluster.h"
#include "program/verify.h"
#include "support/drawn_programs.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/random_program.h"
#include "support/rounds.h"
#include "support/snapshots.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

using std::chrono::microseconds;

TEST(Snapshots, ABuddyIsOnAnotherHost) {
  using Buddies = std::vector<std::int32_t>;
  EXPECT_EQ(buddies_of(1, 1), (Buddies{-1}));
  EXPECT_EQ(buddies_of(3, 1), (Buddies{1, 2, 0}));
  EXPECT_EQ(buddies_of(3, 8), (Buddies{1, 2, 0}));
  EXPECT_EQ(buddies_of(4, 2), (Buddies{2, 3, 0, 1}));
  EXPECT_EQ(buddies_of(6, 2), (Buddies{2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(buddies_of(5, 4), (Buddies{4, 4, 4, 4, 3}));
}

// Hosts that wait, for work that takes random times.
void expect_on_fakes(const Program& program, microseconds longest) {
  ClusterOptions options;
  options.wrap = [=](int device, std::unique_ptr<Transport> inner) {
    return make_fake_transport(std::move(inner), {static_cast<std::uint64_t>(device) + 100, longest});
  };
  if (longest.count() == 0) options.wrap = {};
  test::expect_snapshots(
      program, [=](int device) { return make_fake_executor({static_cast<std::uint64_t>(device), longest}); },
      [&](const ExecutorFactory& executor) {
        return make_thread_cluster(static_cast<int>(program.devices.size()), executor, std::make_shared<test::HashData>(), options);
      });
}

// Devices that wait.
void expect_on_lanes(const Program& program, std::uint64_t seed) {
  std::vector<std::shared_ptr<DeviceLanes>> lanes(program.devices.size());
  ClusterOptions options;
  options.wrap = [&](int device, std::unique_ptr<Transport> inner) {
    return make_lane_transport(std::move(inner), lanes[static_cast<std::size_t>(device)]);
  };
  const auto executor = [&](int device) {
    auto& own = lanes[static_cast<std::size_t>(device)] = make_thread_lanes(seed + static_cast<std::uint64_t>(device), microseconds(20));
    return make_lane_executor(make_fake_executor({}), own);
  };
  test::expect_snapshots(program, executor, [&](const ExecutorFactory& given) {
    return make_thread_cluster(static_cast<int>(program.devices.size()), given, std::make_shared<test::HashData>(), options);
  });
}

TEST(Snapshots, OfRandomPrograms) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program program = test::random_program(seed, 1 + static_cast<int>(seed % 5), 40);
    expect_on_fakes(program, microseconds(seed % 2 * 20));
    expect_on_lanes(program, seed);
  }
}

// The programs are of tables, groups that hold state in shares, windows and axes.
TEST(Snapshots, OfWhatLoweringMakes) {
  int tried = 0;
  for (std::uint64_t seed = 0; tried < test::rounds(32) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    test::Random random(seed);
    const std::optional<Program> program = seed % 4 == 0   ? test::of_random_table(random)
                                           : seed % 4 == 1 ? test::of_groups(random)
                                           : seed % 4 == 2 ? test::of_classes(random)
                                                           : test::of_mesh(random);
    if (!program) continue;
    ++tried;
    expect_on_fakes(*program, microseconds(0));
    if (tried % 8 == 0) expect_on_lanes(*program, seed);
  }
}

using Instructions = std::vector<Instruction>;

std::vector<std::size_t> numbers_of(const DeviceProgram& device, Opcode opcode) {
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at < device.instructions.size(); ++at) {
    const Instruction& i = device.instructions[at];
    const SlotId slot = i.opcode == Opcode::offload ? device.results_of(i)[0].slot : i.slot;
    if (i.opcode == opcode && device.slots[slot].kind == SlotClass::snapshot) out.push_back(at);
  }
  return out;
}

std::size_t one_of(test::Random& random, const std::vector<std::size_t>& numbers) {
  return numbers[static_cast<std::size_t>(test::draw(random, 0, static_cast<int>(numbers.size()) - 1))];
}

// A copy to the host comes behind the first update of what it copies.
bool with_a_late_copy(test::Random& random, Program& program) {
  DeviceProgram& device = program.devices[0];
  const std::vector<std::size_t> offloads = numbers_of(device, Opcode::offload);
  if (offloads.empty()) return false;
  const auto at = static_cast<std::ptrdiff_t>(one_of(random, offloads));
  const Instruction late = device.instructions[static_cast<std::size_t>(at)];
  const auto writes = [&](const Instruction& i) {
    return i.opcode != Opcode::offload &&
           std::ranges::any_of(device.results_of(i), [&](const Result& r) { return r.slot == device.operands_of(late)[0]; });
  };
  const auto update = std::ranges::find_if(device.instructions, writes);
  if (update == device.instructions.end()) return false;
  std::rotate(device.instructions.begin() + at, device.instructions.begin() + at + 1, update + 1);
  return true;
}

bool without_a_copy(test::Random& random, Program& program) {
  Instructions& all = program.devices[0].instructions;
  const std::vector<std::size_t> offloads = numbers_of(program.devices[0], Opcode::offload);
  if (offloads.empty()) return false;
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(one_of(random, offloads)));
  return true;
}

// Two copies of equal parts go to each other's slots.
bool with_copies_crossed(test::Random& random, Program& program) {
  DeviceProgram& device = program.devices[0];
  const std::vector<std::size_t> offloads = numbers_of(device, Opcode::offload);
  for (int attempt = 0; attempt < 20 && !offloads.empty(); ++attempt) {
    Result& a = device.results[device.instructions[one_of(random, offloads)].first_result];
    Result& b = device.results[device.instructions[one_of(random, offloads)].first_result];
    if (a.slot == b.slot || device.slots[a.slot].parts != device.slots[b.slot].parts) continue;
    std::swap(a.slot, b.slot);
    return true;
  }
  return false;
}

bool with_another_sent(test::Random& random, Program& program) {
  DeviceProgram& device = program.devices[0];
  const std::vector<std::size_t> sends = numbers_of(device, Opcode::send);
  for (int attempt = 0; attempt < 20 && !sends.empty(); ++attempt) {
    Instruction &a = device.instructions[one_of(random, sends)], &b = device.instructions[one_of(random, sends)];
    if (a.slot == b.slot || device.slots[a.slot].parts != device.slots[b.slot].parts) continue;
    a.slot = b.slot;
    return true;
  }
  return false;
}

// Both ends of the last one to a device are gone.
bool without_a_transfer(test::Random&, Program& program) {
  Instructions& from = program.devices[0].instructions;
  const std::vector<std::size_t> sends = numbers_of(program.devices[0], Opcode::send);
  if (sends.empty()) return false;
  const Instruction send = from[sends.back()];
  Instructions& to = program.devices[static_cast<std::size_t>(send.peer)].instructions;
  const auto is_end = [](Opcode opcode, std::int32_t peer, std::int32_t tag) {
    return [=](const Instruction& i) { return i.opcode == opcode && i.peer == peer && i.tag >= tag; };
  };
  std::erase_if(from, [&](const Instruction& i) { return i == send; });
  std::erase_if(to, [&](const Instruction& i) { return i.opcode == Opcode::recv && i.peer == 0 && i.tag == send.tag; });
  for (Instruction& i : from)
    if (is_end(Opcode::send, send.peer, send.tag)(i)) --i.tag;
  for (Instruction& i : to)
    if (is_end(Opcode::recv, 0, send.tag)(i)) --i.tag;
  return true;
}

TEST(Snapshots, MadeWrongAreRefused) {
  struct Kind {
    const char* name;
    bool (*mutate)(test::Random&, Program&);
    const char* message;
    int made = 0;
  };
  Kind kinds[] = {{"with a late copy", with_a_late_copy, "does not end the step with what state"},
                  {"without a copy", without_a_copy, "though the step takes this snapshot"},
                  {"with copies crossed", with_copies_crossed, "does not end the step with what state"},
                  {"with another sent", with_another_sent, "does not end the step with what state"},
                  {"without a transfer", without_a_transfer, "though the step takes this snapshot"}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    test::Random random(seed);
    const Program plain = seed % 2 == 0 ? test::of_random_table(random) : test::of_groups(random);
    const Program right = with_snapshot(plain, 0, buddies_of(static_cast<int>(plain.devices.size()), 1));
    for (Kind& kind : kinds) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << kind.name);
      Program wrong = right;
      if (!kind.mutate(random, wrong)) continue;
      ++kind.made;
      const std::string message = test::message_of([&] { verify(wrong); });
      EXPECT_NE(message.find(kind.message), std::string::npos) << message;
    }
  }
  for (const Kind& kind : kinds) EXPECT_GE(kind.made, 5) << kind.name;
}

}  // namespace
}  // namespace penstock
