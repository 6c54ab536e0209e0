// SPDX-License-Identifier: Apache-2.0
#include "simulate/roofline.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::graph_of;
using test::message_of;

const char* const kTwo = R"([defaults]
launch = 2.0
efficiency = 0.5
[devices.small]
title = "A small one"
f64 = 1.0
f32 = 2.0
bandwidth = 100.0
source = "nobody"
[devices.large]
title = "A large one"
f64 = 10.0
f32 = 20.0
bf16 = 40.0
bandwidth = 1000.0
memory = 80.0
launch = 1.0
efficiency = 1.0
host = "wire"
source = "nobody"
[links.wire]
bandwidth = 1.0
latency = 5.0
source = "nobody"
)";

TEST(Devices, UnitsAndDefaults) {
  const DeviceTable table = parse_devices(kTwo, "two.toml");
  const DeviceModel &small = table.device("small"), &large = table.device("large");
  EXPECT_DOUBLE_EQ(small.f32, 2e12);
  EXPECT_DOUBLE_EQ(small.bandwidth, 1e11);
  EXPECT_DOUBLE_EQ(small.launch_seconds, 2e-6);
  EXPECT_DOUBLE_EQ(small.efficiency, 0.5);
  EXPECT_EQ(small.memory_bytes, 0);
  EXPECT_EQ(large.memory_bytes, 80'000'000'000);
  EXPECT_DOUBLE_EQ(large.launch_seconds, 1e-6);
  EXPECT_DOUBLE_EQ(table.link("wire").bandwidth, 1e9);
  EXPECT_DOUBLE_EQ(table.link("wire").latency, 5e-6);
  EXPECT_FALSE(small.host);
  EXPECT_DOUBLE_EQ(large.host.value().bandwidth, 1e9);
  // What is not published counts as f32.
  EXPECT_DOUBLE_EQ(large.peak(DType::bf16), 4e13);
  EXPECT_DOUBLE_EQ(small.peak(DType::bf16), 2e12);
  EXPECT_DOUBLE_EQ(small.peak(DType::f64), 1e12);
  EXPECT_DOUBLE_EQ(small.peak(DType::i64), 2e12);
}

TEST(Devices, Published) {
  const DeviceTable& table = published_devices();
  EXPECT_DOUBLE_EQ(table.device("a100-80").bf16, 312e12);
  EXPECT_EQ(table.device("h200").memory_bytes, 141'000'000'000);
  EXPECT_DOUBLE_EQ(table.link("infiniband-ndr").bandwidth, 50e9);
  for (const auto& [name, device] : table.devices) {
    EXPECT_GE(device.f32, device.f64) << name;
    EXPECT_GE(device.peak(DType::bf16), device.f32) << name;
    EXPECT_GT(device.launch_seconds, 0) << name;
    EXPECT_GT(device.efficiency, 0) << name;
    EXPECT_LE(device.efficiency, 1) << name;
    EXPECT_FALSE(device.source.empty()) << name;
  }
}

TEST(Devices, Unknown) {
  const DeviceTable table = parse_devices(kTwo, "two.toml");
  EXPECT_EQ(message_of([&] { table.device("smal"); }),
            "there is no device \"smal\" in two.toml\n  known: large, small\n  hint: did you mean \"small\"?");
  EXPECT_EQ(message_of([&] { table.link("x"); }), "there is no link \"x\" in two.toml\n  known: wire");
}

// The message of kTwo with `from` as `to`.
std::string message_with(const std::string& from, const std::string& to) {
  std::string text = kTwo;
  text.replace(text.find(from), from.size(), to);
  return message_of([&] { parse_devices(text, "two.toml"); });
}

TEST(Devices, BadFiles) {
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = -1.0"), "two.toml:6:7: small.f64 must be a positive number");
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = nan"), "two.toml:6:7: small.f64 must be a positive number");
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = \"fast\""), "two.toml:6:7: small.f64 must be a positive number");
  EXPECT_EQ(message_with("f64 = 1.0\n", ""), "two.toml:4:1: small has no key \"f64\"");
  EXPECT_EQ(message_with("source = \"nobody\"", "source = 1"), "two.toml:9:10: small.source must be a text");
  EXPECT_EQ(message_with("bandwidth = 100.0", "bandwith = 100.0"),
            "two.toml:8:1: small has an unknown key \"bandwith\"\n"
            "  known: title, source, f64, f32, f16, bf16, bandwidth, memory, host, launch, efficiency, attention, attention_efficiency, "
            "memory_efficiency, processors, elementwise_launch, reach\n  hint: did you mean \"bandwidth\"?");
  EXPECT_EQ(message_with("bandwidth = 100.0", "bandwidth = 100.0\nmemory_efficiency = 0"),
            "two.toml:9:21: small.memory_efficiency must be a positive number");
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = 1.0\nreach = { gelo = 0.5 }"), "two.toml:7:9: small.reach: there is no op \"gelo\"");
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = 1.0\nreach = { gelu = 0 }"), "two.toml:7:18: small.reach.gelu must be a positive number");
  EXPECT_EQ(message_with("f64 = 1.0", "f64 = 1.0\nreach = 0.5"), "two.toml:7:9: small.reach must be a table of ops and shares");
  EXPECT_EQ(message_with("host = \"wire\"", "host = \"wirf\""),
            "there is no link \"wirf\" in two.toml\n  known: wire\n  hint: did you mean \"wire\"?");
  EXPECT_EQ(message_with("[links.wire]", "[wires.wire]"),
            "two.toml:21:2: the file has an unknown key \"wires\"\n  known: defaults, devices, links");
  EXPECT_EQ(message_with("source = \"nobody\"", "source = \"nobody\"\nattention = \"here\""),
            "two.toml:10:13: attention must be \"in memory\"");
  EXPECT_EQ(message_of([] { parse_devices("devices = 1", "d.toml"); }), "d.toml:1:11: devices must be a table");
  EXPECT_EQ(message_of([] { parse_devices("defaults = 1", "d.toml"); }), "d.toml:1:12: defaults must be a table");
  EXPECT_EQ(message_of([] { parse_devices("[devices]\nx = 1", "d.toml"); }), "d.toml:2:5: devices.x must be a table");
}

TEST(Roofline, ProductsByFlopsAndTheRestByBytes) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[1000,1000], %b: f32[1000,1000]) -> (f32[1000,1000]) {
  %0: f32[1000,1000] = mm(%a, %b)
  %1: f32[1000,1000] = transpose(%0) {dim0=0, dim1=1}
  %2: f32[1000,1000] = add(%1, %a)
  return %2
}
)");
  const DeviceTable table = parse_devices(kTwo, "two.toml");
  // small: 2e9 flops at half of 2e12, 12e6 bytes at 1e11; the transpose is a view.
  EXPECT_DOUBLE_EQ(roofline_seconds(graph, table.device("small")), 2 * 2e-6 + 2e9 / 1e12 + 12e6 / 1e11);
  EXPECT_DOUBLE_EQ(roofline_seconds(graph, table.device("large")), 2 * 1e-6 + 2e9 / 20e12 + 12e6 / 1e12);
}

// Kernels of some ops reach less of the bandwidth than others, and what goes element by element may be launched faster.
TEST(Roofline, SharesOfSingleOps) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[1000,1000]) -> (f32[1000,1000]) {
  %0: f32[1000,1000] = gelu(%a) {approximate="none"}
  %1: f32[1000,1000] = softmax(%0) {dim=1}
  %2: f32[1000,1000] = relu(%1)
  return %2
}
)");
  std::string text = kTwo;
  text.replace(text.find("f64 = 1.0"), 9, "f64 = 1.0\nelementwise_launch = 0.5\nreach = { gelu = 0.25 }");
  EXPECT_DOUBLE_EQ(roofline_seconds(graph, parse_devices(text, "two.toml").device("small")),
                   0.5e-6 + 8e6 / 25e9 + 2e-6 + 8e6 / 100e9 + 0.5e-6 + 8e6 / 100e9);
}

// Attention and the memory may reach other shares of their peaks than products.
TEST(Roofline, SharesThatWereMeasured) {
  const std::string x = "f32[1,8,1000,64]";
  const Graph graph =
      graph_of(concat("graph @g(%q: ", x, ", %k: ", x, ", %v: ", x, ") -> (", x, ") {\n  %0: ", x,
                      ", %1: f32[1,8,1000] = scaled_dot_product_attention(%q, %k, %v) {is_causal=false, scale=0.125}\n  %2: ", x,
                      " = add(%0, %q)\n  return %2\n}\n"));
  std::string text = kTwo;
  text.replace(text.find("f64 = 1.0"), 9, "f64 = 1.0\nattention_efficiency = 0.25\nmemory_efficiency = 0.8");
  const double flops = 4.0 * 8 * 1000 * 1000 * 64, bytes = 3 * 4.0 * 8 * 1000 * 64;
  EXPECT_DOUBLE_EQ(roofline_seconds(graph, parse_devices(text, "two.toml").device("small")), 2 * 2e-6 + flops / 0.5e12 + bytes / 80e9);
  EXPECT_DOUBLE_EQ(roofline_seconds(graph, parse_devices(kTwo, "two.toml").device("small")), 2 * 2e-6 + flops / 1e12 + bytes / 100e9);
}

// 8 heads of 300 queries are 24 tiles of at most 128. On 10 processors they take 3 waves; under a mask, half of the work and the longest
// tile behind it. A backward has two kernels more.
TEST(Roofline, AttentionGoesInTiles) {
  const std::string q = "f32[1,8,300,64]", k = "f32[1,8,500,64]";
  const auto seconds = [&](const std::string& keys, const char* causal, bool backward) {
    const std::string how = concat("{is_causal=", causal, ", scale=0.125}"), sums = "f32[1,8,300]";
    const std::string op =
        backward ? concat("  %0: ", q, ", %1: ", keys, ", %2: ", keys, " = scaled_dot_product_attention_backward(%d, %q, %k, %v, %o, %l) ")
                 : concat("  %0: ", q, ", %1: ", sums, " = scaled_dot_product_attention(%q, %k, %v) ");
    const Graph graph = graph_of(concat("graph @g(%d: ", q, ", %q: ", q, ", %k: ", keys, ", %v: ", keys, ", %o: ", q, ", %l: ", sums,
                                        ") -> (", q, ") {\n", op, how, "\n  return %0\n}\n"));
    std::string text = kTwo;
    text.replace(text.find("f64 = 1.0"), 9, "f64 = 1.0\nprocessors = 10");
    return roofline_seconds(graph, parse_devices(text, "two.toml").device("small"));
  };
  const double tile = 4.0 * 64 / 1e12 * 8 / 24 * 10;  // seconds of a processor for a query and key of each
  EXPECT_NEAR(seconds(q, "false", false), 2e-6 + 3 * tile * 300 * 300, 1e-12);
  EXPECT_NEAR(seconds(q, "true", false), 2e-6 + (2.4 / 2 + 1) * tile * 300 * 300, 1e-12);
  EXPECT_NEAR(seconds(q, "true", true), 3 * 2e-6 + 2.5 * (2.4 / 2 + 1) * tile * 300 * 300, 1e-12);
  // Tiles of a backward are of keys: 32 of them.
  EXPECT_NEAR(seconds(k, "false", false), 2e-6 + 3 * tile * 300 * 500, 1e-12);
  EXPECT_NEAR(seconds(k, "false", true), 3 * 2e-6 + 2.5 * 4 * tile * 24 / 32 * 300 * 500, 1e-12);
}

// Scores of 8 heads, 100 x 100 each: 6 passes and a mask forward, 9 and a mask backward; whole products, whatever the mask leaves.
TEST(Roofline, AttentionThatWritesItsScores) {
  const char* q = "f32[1,8,100,64]";
  const Graph forward =
      graph_of(concat("graph @g(%q: ", q, ", %k: ", q, ", %v: ", q, ") -> (", q, ") {\n  %0: ", q,
                      ", %1: f32[1,8,100] = scaled_dot_product_attention(%q, %k, %v) {is_causal=true, scale=0.125}\n", "  return %0\n}\n"));
  DeviceModel device = parse_devices(kTwo, "two.toml").device("small");
  const double product = 2.0 * 8 * 100 * 100 * 64 / 1e12, scores = 8 * 100 * 100;
  const double on_chip = roofline_seconds(forward, device);
  device.scores_in_memory = true;
  EXPECT_DOUBLE_EQ(roofline_seconds(forward, device), 4 * 2e-6 + 2 * product + scores * (6 * 4 + 1) / 1e11);
  EXPECT_LT(on_chip, roofline_seconds(forward, device));
  const Graph backward = graph_of(concat(
      "graph @g(%d: ", q, ", %q: ", q, ", %k: ", q, ", %v: ", q, ", %o: ", q, ", %l: f32[1,8,100]) -> (", q, ") {\n  %0: ", q, ", %1: ", q,
      ", %2: ", q, " = scaled_dot_product_attention_backward(%d, %q, %k, %v, %o, %l) {is_causal=true, scale=0.125}\n", "  return %0\n}\n"));
  EXPECT_DOUBLE_EQ(roofline_seconds(backward, device), 6 * 2e-6 + 4 * product + scores * (9 * 4 + 1) / 1e11);
}

}  // namespace
}  // namespace penstock
