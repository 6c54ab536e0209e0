// SPDX-License-Identifier: Apache-2.0
#include "simulate/durations.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// Two tasks, an input, a copy.
const char* const kProgram = R"(penstock program 1
program @step {microbatches=2}
data %tokens: f32[8] split
task @F0 {scratch=0}
graph @F0(%x: f32[4]) -> (f32[4]) {
  %0: f32[4] = mul(%x) {other=2.0}
  return %0
}
task @after {scratch=0}
graph @after(%x: f32[4]) -> (f32[4]) {
  %0: f32[4] = exp(%x)
  return %0
}
device 0 {state_bytes=0, step_bytes=192, scratch_bytes=0}
  slot %x step @0 (f32[4])
  slot %y step @64 (f32[4])
  slot %z step @128 (f32[4])
  input %x = %tokens[0]
  run 0F0 @F0(%x) -> (store %y)
  send %y to 1 #0
  copy %y -> store %z
  free %y
  free %x
  free %z
device 1 {state_bytes=0, step_bytes=128, scratch_bytes=0}
  slot %y step @0 (f32[4])
  slot %z step @64 (f32[4])
  recv %y from 0 #0
  run @after(%y) -> (store %z)
  free %y
  free %z
)";

Program program() {
  return parse_program(kProgram, "program");
}

Costs measured() {
  Costs costs;
  costs.model = "gpt, f32: width 64";
  for (const Task& task : program().tasks) {
    TaskCost& cost = costs.tasks.emplace_back();
    cost.hash = cost_hash(task.graph);
    cost.name = task.name;
    const double unit = static_cast<double>(costs.tasks.size());
    cost.alone = {unit, 0, 1};
    cost.busy = {2 * unit, 0, 1};
    cost.beside = {{"threads", {3 * unit, 0, 1}}};
  }
  costs.input_seconds["tokens"] = 0.5;
  costs.copy_bandwidth = 64;
  costs.links["threads"].latency = 9;
  return costs;
}

TEST(Durations, OfEveryInstruction) {
  const Durations expected = {{0.5, 3, 0, 1, 0, 0, 0}, {0, 6, 0, 0}};
  EXPECT_EQ(durations_of(program(), measured(), {}), expected);
}

TEST(Durations, TakeWhatComesNearest) {
  const auto first = [](const Costs& costs, const CostContext& context) { return task_seconds(program(), costs, context)[0]; };
  Costs costs = measured();
  EXPECT_EQ(first(costs, {.which = Measured::alone}), 1);
  EXPECT_EQ(first(costs, {.which = Measured::busy}), 2);
  EXPECT_EQ(first(costs, {.which = Measured::beside}), 3);
  EXPECT_EQ(first(costs, {.backend = "gloo"}), 2);  // never measured over Gloo: all busy comes nearer than another backend's step
  costs.tasks[0].busy.reset();
  EXPECT_EQ(first(costs, {.backend = "gloo"}), 3);
  EXPECT_EQ(first(costs, {.which = Measured::busy}), 3);
  costs.tasks[0].beside.clear();
  EXPECT_EQ(first(costs, {}), 1);
}

TEST(Durations, OneDeviceIsAlone) {
  Program single = program();
  single.devices.pop_back();
  EXPECT_EQ(task_seconds(single, measured(), {})[0], 1);
  EXPECT_EQ(task_seconds(single, measured(), {.which = Measured::beside})[0], 3);
}

TEST(Durations, MissingTasks) {
  Costs costs = measured();
  costs.tasks.erase(costs.tasks.begin());
  EXPECT_EQ(message_of([&] { durations_of(program(), costs, {.file = "my.json"}); }),
            "my.json has no time for 1 of the 2 tasks of program @step\n"
            "  missing: F0 (F of stage 0)\n"
            "  it was measured for gpt, f32: width 64\n"
            "  hint: penstock profile CONFIG.toml --actors 2 --out my.json measures them, with the configuration of this program");
  costs.tasks.clear();
  EXPECT_EQ(message_of([&] { durations_of(program(), costs, {.backend = "gloo"}); }),
            "costs.json has no time for 2 of the 2 tasks of program @step\n"
            "  missing: F0 (F of stage 0), after\n"
            "  it was measured for gpt, f32: width 64\n"
            "  hint: penstock launch -n 2 -- profile CONFIG.toml --actors 2 --backend gloo --out costs.json measures them, "
            "with the configuration of this program");
  costs = measured();
  costs.input_seconds.clear();
  EXPECT_EQ(message_of([&] { durations_of(program(), costs, {}); }),
            "costs.json has no time for input \"tokens\" of program @step\n"
            "  it was measured for gpt, f32: width 64\n"
            "  hint: penstock profile CONFIG.toml --actors 2 --out costs.json measures them, with the configuration of this program");
}

TEST(Durations, ManyMissingTasksAreCounted) {
  Program many = program();
  many.tasks.resize(7, many.tasks[0]);
  const std::string message = message_of([&] { task_seconds(many, {}, {}); });
  EXPECT_NE(message.find("7 of the 7 tasks"), std::string::npos) << message;
  EXPECT_NE(message.find("F0, and 3 more\n"), std::string::npos) << message;
}

// A device that was measured copies by itself; a published one has a link to its host, or its memory is the host's.
TEST(Durations, OffloadsAreTheDevicesOrTheHostLinks) {
  const Program offloading = parse_program(R"(penstock program 1
program @step {microbatches=1}
data %x: f32[16]
device 0 {state_bytes=0, step_bytes=128, scratch_bytes=0, host_bytes=64}
  slot %x step @0 (f32[16])
  slot %h host @0 (f32[16])
  slot %y step @64 (f32[16])
  input %x = %x
  offload %x -> %h
  free %x
  reload %h -> %y
  free %h
  free %y
)",
                                           "program");
  const auto copies = [&](const Costs& costs, const CostContext& context) {
    const Durations durations = durations_of(offloading, costs, context);
    EXPECT_EQ(durations[0][1], durations[0][3]);
    return durations[0][1];
  };
  Costs costs = measured();
  costs.input_seconds["x"] = 0;
  EXPECT_EQ(copies(costs, {}), 1);
  EXPECT_EQ(host_link(costs, {}).bandwidth, Link().bandwidth);
  DeviceModel device;
  device.f32 = 1;
  device.bandwidth = 16;
  EXPECT_EQ(copies({}, {.roofline = device}), 8);
  device.host = Link{.latency = 0.5, .bandwidth = 32};
  EXPECT_EQ(copies({}, {.roofline = device}), 0);
  EXPECT_EQ(host_link({}, {.roofline = device}).latency, 0.5);
  EXPECT_EQ(copies(costs, {.roofline = device}), 1);
  EXPECT_EQ(host_link(costs, {.roofline = device}).latency, 0);
}

TEST(Durations, RooflineForWhatWasNotMeasured) {
  DeviceModel device;
  device.f32 = 1;
  device.bandwidth = 16;
  Costs costs = measured();
  costs.tasks.pop_back();
  const CostContext context{.roofline = device};
  // after: 4 flops, 32 bytes read and written.
  const Durations expected = {{0.5, 3, 0, 1, 0, 0, 0}, {0, roofline_seconds(program().tasks[1].graph, device), 0, 0}};
  EXPECT_EQ(durations_of(program(), costs, context), expected);
  // Nothing measured at all: inputs and copies by bytes of their slots.
  const Durations modelled = durations_of(program(), {}, context);
  EXPECT_EQ(modelled[0][0], 4);
  EXPECT_EQ(modelled[0][3], 8);
}

TEST(Durations, Links) {
  EXPECT_EQ(network_of(measured(), {}).at(0, 1).latency, 9);
  EXPECT_TRUE(network_of(measured(), {}).collectives.empty());
  Costs together = measured();
  together.collectives["threads"][Opcode::all_gather].latency = 4;
  EXPECT_EQ(network_of(together, {}).collectives.at(Opcode::all_gather).latency, 4);
  EXPECT_EQ(message_of([] { network_of(measured(), {.backend = "gloo"}); }),
            "costs.json has no links of backend gloo\n  measured: threads\n"
            "  hint: penstock launch -n 2 -- profile CONFIG.toml --backend gloo --out costs.json measures them");
  EXPECT_EQ(message_of([] { network_of({}, {}); }),
            "costs.json has no links of backend threads\n  measured: none\n"
            "  hint: penstock profile CONFIG.toml --backend threads --out costs.json measures them");
}

}  // namespace
}  // namespace penstock
