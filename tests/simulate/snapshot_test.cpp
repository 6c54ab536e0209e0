// SPDX-License-Identifier: Apache-2.0
// The simulator predicts what a snapshot costs with the step that takes it.
#include "lower/snapshot.h"

#include <gtest/gtest.h>

#include "simulate/simulate.h"
#include "support/drawn_programs.h"

namespace penstock {
namespace {

// Two runs, and an update of 64 bytes, on the first of two devices.
const char* const kProgram = R"(penstock program 1
program @p {microbatches=1}
task @t {scratch=0}
graph @t(%x: f32[16]) -> (f32[16]) {
  %0: f32[16] = neg(%x)
  return %0
}
device 0 {state_bytes=64, step_bytes=128, scratch_bytes=0}
  slot %w state @0 (f32[16] "w")
  slot %a step @0 (f32[16])
  slot %b step @64 (f32[16])
  run @t(%w) -> (store %a)
  run @t(%a) -> (store %b)
  run @t(%b) -> (update %w)
  free %a
  free %b
device 1 {state_bytes=0, step_bytes=0, scratch_bytes=0}
)";

// A second for each run.
double makespan_of(const Program& program, const Network& network) {
  Durations durations;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& seconds = durations.emplace_back();
    for (const Instruction& i : device.instructions) seconds.push_back(i.opcode == Opcode::run ? 1 : 0);
  }
  return simulate(program, durations, network).makespan;
}

TEST(SimulatedSnapshots, TakeWhatIsInTheirWay) {
  const Program plain = parse_program(kProgram), with = with_snapshot(plain, 0, {1, -1});
  Network network;
  EXPECT_EQ(makespan_of(plain, network), 3);
  EXPECT_EQ(makespan_of(with, network), 3);
  network.host.bandwidth = 64;  // done when it is to be sent, behind the first run
  EXPECT_EQ(makespan_of(with, network), 3);
  network.host.bandwidth = 16;  // four seconds, which the second run waits for behind the send
  EXPECT_EQ(makespan_of(with, network), 6);
  network.host.bandwidth = 64;
  network.link.bandwidth = 64;  // from 1 to 2
  EXPECT_EQ(makespan_of(with, network), 3);
  network.link.bandwidth = 8;  // from 1 to 9, when all else is done
  EXPECT_EQ(makespan_of(with, network), 9);
  EXPECT_EQ(makespan_of(with_snapshot(plain, 0, {-1, -1}), network), 3);
}

TEST(SimulatedSnapshots, OfWhatLoweringMakesTakeNothingWhereCopiesDo) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    test::Random random(seed);
    const Program plain = seed % 2 == 0 ? test::of_groups(random) : test::of_random_table(random);
    const Program with = with_snapshot(plain, 1, buddies_of(static_cast<int>(plain.devices.size()), 1));
    EXPECT_EQ(makespan_of(with, {}), makespan_of(plain, {}));
    Network slow;
    slow.host.bandwidth = 1;
    double most = 0;  // bytes that a device copies
    for (const DeviceProgram& device : with.devices) {
      double copied = 0;
      for (const Instruction& i : device.instructions)
        if (i.opcode == Opcode::offload) copied += static_cast<double>(slot_bytes(device.slots[device.operands_of(i)[0]]));
      most = std::max(most, copied);
    }
    EXPECT_GE(makespan_of(with, slow), std::max(most, makespan_of(plain, slow)));
  }
}

}  // namespace
}  // namespace penstock
