// SPDX-License-Identifier: Apache-2.0
#include "penstock/costs.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/text.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::message_of;

Costs sample_costs() {
  Costs costs;
  costs.machine = {"A processor", 2, 1 << 30, "penstock 0.1"};
  costs.model = "gpt, f32: width 64";
  TaskCost forward;
  forward.hash = 0xfedcba9876543210;
  forward.name = "F0";
  forward.stage = 0;
  forward.stages = 2;
  forward.light = true;
  forward.alone = {0.001, 1e-5, 10};
  forward.busy = {0.1 + 0.2, 0, 1};  // a number that needs all digits
  forward.beside["threads"] = {0.0015, 0, 20};
  TaskCost after;
  after.hash = 7;
  after.name = "after.0";
  after.beside["gloo"] = {2e-4, 1e-6, 5};
  costs.tasks = {forward, after};
  costs.links["threads"] = {.latency = 1e-5, .bandwidth = 4e10, .start_seconds = 1e-7, .second_end_copies = true, .wake_seconds = 1e-5};
  costs.links["gloo"] = {.latency = 2e-5, .medium = 3};  // bandwidth: infinite
  costs.collectives["gloo"][Opcode::all_gather] = {.latency = 3e-4, .bandwidth = 5e8, .start_seconds = 1e-4};
  costs.step_overhead["threads"] = 5e-5;
  costs.input_seconds["tokens"] = 3e-6;
  costs.copy_bandwidth = 5e10;
  return costs;
}

// The message of a file in which `from` stands as `to`.
std::string message_with(const std::string& from, const std::string& to) {
  std::string text = print(sample_costs());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return message_of([&] { parse_costs(text, "costs.json"); });
}

TEST(Costs, ReadBackAsPrinted) {
  const std::string text = print(sample_costs());
  EXPECT_EQ(text.substr(0, 25), "{\n \"penstock\": \"costs 1\",");
  const Costs costs = parse_costs(text, "costs.json");
  EXPECT_EQ(print(costs), text);
  EXPECT_EQ(costs.tasks[0].hash, 0xfedcba9876543210);
  EXPECT_EQ(costs.tasks[0].busy->median, 0.1 + 0.2);
  EXPECT_EQ(costs.tasks[1].stage, -1);
  EXPECT_FALSE(costs.tasks[1].alone);
  EXPECT_EQ(costs.links.at("gloo").bandwidth, std::numeric_limits<double>::infinity());
  EXPECT_EQ(costs.links.at("gloo").medium, 3);
  EXPECT_TRUE(costs.links.at("threads").second_end_copies);
  ASSERT_EQ(costs.collectives.at("gloo").size(), 1u);
  EXPECT_EQ(costs.collectives.at("gloo").at(Opcode::all_gather).bandwidth, 5e8);
}

TEST(Costs, NoCosts) {
  EXPECT_EQ(message_of([] { parse_costs("{\"a\":\n nan}", "c.json"); }),
            "c.json:2:3: this is not JSON\n   nan}\n    ^ near here\n  hint: measure again with penstock profile");
  EXPECT_EQ(message_of([] { parse_costs("[1]", "c.json"); }),
            "c.json is no file of costs: it has no key \"penstock\"\n  hint: penstock profile --out FILE writes one");
  EXPECT_EQ(message_with("costs 1", "plan 1"),
            "costs.json: penstock is \"plan 1\"; this build reads \"costs 1\"\n  hint: measure again with penstock profile");
}

TEST(Costs, BadNumbers) {
  const std::string median = "\"median\": 0.001,";
  EXPECT_EQ(message_with(median, "\"median\": -1,"), "costs.json: tasks[0].alone.median is -1; it must not be negative");
  EXPECT_EQ(message_with(median, "\"median\": null,"), "costs.json: tasks[0].alone.median is null; it must be a number");
  EXPECT_EQ(message_with(median, "\"median\": \"fast\","), "costs.json: tasks[0].alone.median is \"fast\"; it must be a number");
  const std::string large = message_with(median, "\"median\": 1e999,");
  EXPECT_TRUE(large.starts_with("costs.json:") && large.find(": a number is too large\n") != std::string::npos) << large;
  for (const char* none : {"NaN", "Infinity", "-Infinity"})
    EXPECT_NE(message_with(median, concat("\"median\": ", none, ",")).find(": this is not JSON"), std::string::npos) << none;
  EXPECT_EQ(message_with("\"count\": 10", "\"count\": 0"), "costs.json: tasks[0].alone.count is 0; it must be a whole number from 1");
  EXPECT_EQ(message_with("\"cores\": 2", "\"cores\": 18446744073709551615"),
            "costs.json: machine.cores is 18446744073709551615; it must be a whole number from 0");
  EXPECT_EQ(message_with("\"stage\": 0", "\"stage\": 2"), "costs.json: tasks[0].stage is 2; it must be a whole number from 0 to 1");
  EXPECT_EQ(message_with("\"bandwidth\": 40000000000.0", "\"bandwidth\": 0"), "costs.json: links.threads.bandwidth is 0; it must be more");
  EXPECT_EQ(message_with("\"tokens\": 3e-06", "\"tokens\": -0.5"), "costs.json: input_seconds.tokens is -0.5; it must not be negative");
}

TEST(Costs, BadKeysAndValues) {
  EXPECT_EQ(message_with("\"latency\"", "\"latncy\""),
            "costs.json: links.gloo has an unknown key \"latncy\"\n  hint: did you mean \"latency\"?");
  EXPECT_EQ(message_with("\"all_gather\"", "\"all_gathr\""), "costs.json: collectives.gloo.all_gathr is of no kind of collective");
  EXPECT_EQ(message_with("\"spread\": 1e-05,", ""),
            "costs.json: tasks[0].alone has no key \"spread\"\n"
            "  hint: the file is damaged, or of another version: measure again with penstock profile");
  EXPECT_EQ(message_with("\"model\":", "\"modell\":"), "costs.json has an unknown key \"modell\"\n  hint: did you mean \"model\"?");
  EXPECT_EQ(message_with("\"model\": \"gpt, f32: width 64\"", "\"model\": 3"), "costs.json: model is 3; it must be a text");
  EXPECT_EQ(message_with("\"kind\": \"F\"", "\"kind\": \"G\""), "costs.json: tasks[0].kind is \"G\"; there is no such kind of action");
  EXPECT_EQ(message_with("\"second_end_copies\": true", "\"second_end_copies\": 1"),
            "costs.json: links.threads.second_end_copies is 1; it must be true or false");
  EXPECT_EQ(message_with("\"input_seconds\": {", "\"input_seconds\": [], \"links\": {"),
            "costs.json: the key \"links\" is there twice in one object");
  EXPECT_EQ(message_of([] { parse_costs(R"({"penstock": "costs 1", "machine": 1})", "c.json"); }),
            "c.json: machine is 1; it must be an object");
  EXPECT_EQ(message_with("0xfedcba9876543210", "0xfedcba987654321g"),
            "costs.json: tasks[0].hash is \"0xfedcba987654321g\"; it must be 0x and 16 hexadecimal digits");
  EXPECT_EQ(message_with("0xfedcba9876543210", "0x0000000000000007"),
            "costs.json: tasks[1] (after.0) has the hash 0x0000000000000007 of F0: a task is there twice");
}

TEST(Costs, LaterMeasurementsReplaceEarlierOnes) {
  Costs costs = sample_costs(), newer = sample_costs();
  newer.tasks[0].alone.reset();
  newer.tasks[0].busy->median = 9;
  newer.tasks[0].beside = {{"gloo", {4, 0, 1}}};
  newer.tasks[1].hash = 8;
  newer.links = {{"gloo", {.latency = 7}}};
  newer.collectives["gloo"] = {{Opcode::all_reduce, {.latency = 8}}};
  merge(costs, newer, "costs.json");
  ASSERT_EQ(costs.tasks.size(), 3u);
  EXPECT_EQ(costs.tasks[0].alone->median, 0.001);
  EXPECT_EQ(costs.tasks[0].busy->median, 9);
  EXPECT_EQ(costs.tasks[0].beside.size(), 2u);
  EXPECT_EQ(costs.links.at("gloo").latency, 7);
  EXPECT_EQ(costs.links.at("threads").latency, 1e-5);
  EXPECT_EQ(costs.collectives.at("gloo").at(Opcode::all_reduce).latency, 8);
  EXPECT_EQ(costs.collectives.at("gloo").at(Opcode::all_gather).latency, 3e-4);
}

TEST(Costs, OfAnotherMachineOrModel) {
  Costs costs = sample_costs(), newer = sample_costs();
  newer.machine.processor = "Another";
  newer.machine.build = "penstock 0.2";
  newer.model = "gpt, f32: width 128";
  EXPECT_EQ(message_of([&] { merge(costs, newer, "costs.json"); }),
            "costs.json was measured on another machine or for another model; nothing can be added to it\n"
            "  processor: A processor, here Another\n"
            "  build: penstock 0.1, here penstock 0.2\n"
            "  model: gpt, f32: width 64, here gpt, f32: width 128\n"
            "  hint: name another file with --out");
}

// A system does not keep as much of the memory for itself at each start.
TEST(Costs, OfAMachineThatWasStartedAgain) {
  Costs costs = sample_costs(), newer = sample_costs();
  newer.machine.memory_bytes += newer.machine.memory_bytes / 1000;
  EXPECT_EQ(message_of([&] { merge(costs, newer, "costs.json"); }), "no error");
  newer.machine.memory_bytes += newer.machine.memory_bytes / 50;
  EXPECT_NE(message_of([&] { merge(costs, newer, "costs.json"); }).find("\n  memory: "), std::string::npos);
}

TEST(Costs, HashLeavesNamesAndScalarsAside) {
  const auto hash = [](const std::string& scalar, const std::string& names, const std::string& size) {
    return cost_hash(graph_of(concat("graph @", names, "(%", names, ": f32[", size, "]) -> (f32[", size, "], f32[2]) {\n  %0: f32[", size,
                                     "] = mul(%", names, ") {other=", scalar, "}\n  %1: f32[2] = full() {dtype=f32, fill_value=", scalar,
                                     ", size=[2]}\n  return %0, %1\n}\n")));
  };
  EXPECT_EQ(hash("0.5", "a", "4"), hash("7.0", "b", "4"));
  EXPECT_NE(hash("0.5", "a", "4"), hash("0.5", "a", "5"));
}

}  // namespace
}  // namespace penstock
