// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "cost/figures_for.h"
#include "penstock/plan.h"
#include "support/errors.h"
#include "support/paths.h"

namespace penstock::test {
namespace {

const char* const kTwoNodes = R"(name = "two nodes"

[[devices]]
count = 2
device = "v100"
[[devices]]
memory = 16.0
device = "v100"
speed = 0.5
[[devices]]
[[levels]]
size = 2
link = "nvlink2"
[[levels]]
size = 2
link = "infiniband-hdr"
bandwidth = 12.5
[[between]]
devices = [3, 0]
bandwidth = 1
)";

std::string failure(const std::string& text) {
  return message_of([&] { parse_cluster(text, "c.toml"); });
}
// kTwoNodes with its first `from` replaced.
std::string failure(const std::string& from, const std::string& to) {
  std::string text = kTwoNodes;
  text.replace(text.find(from), from.size(), to);
  return failure(text);
}

TEST(Cluster, AFile) {
  const ClusterSpec cluster = parse_cluster(kTwoNodes, "c.toml");
  EXPECT_EQ(cluster.name, "two nodes");
  ASSERT_EQ(cluster.devices.size(), 4u);
  EXPECT_EQ(cluster.devices[1].memory, 32e9);
  EXPECT_EQ(cluster.devices[1].speed, 1);
  EXPECT_EQ(cluster.devices[2].memory, 16e9);
  EXPECT_EQ(cluster.devices[2].speed, 0.5);
  EXPECT_TRUE(std::isinf(cluster.devices[3].memory));
  EXPECT_EQ(cluster.link(0, 1).bandwidth, 150e9);
  EXPECT_DOUBLE_EQ(cluster.link(3, 2).latency, 5e-6);
  EXPECT_EQ(cluster.link(1, 2).bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster.link(1, 2).latency, 5e-6);
  EXPECT_EQ(cluster.link(0, 3).bandwidth, 1e9);
  EXPECT_EQ(cluster.link(3, 0).latency, 0);
  EXPECT_EQ(cluster.devices[0].host->bandwidth, 15.75e9);  // the published device's
  EXPECT_FALSE(cluster.devices[3].host);
  const ClusterSpec own = parse_cluster("[[devices]]\ndevice = \"v100\"\nhost = \"pcie5\"\n", "c.toml");
  EXPECT_EQ(own.devices[0].host->bandwidth, 63e9);
  EXPECT_TRUE(failure("[[devices]]\nhost = \"pcie9\"\n").starts_with("c.toml:2:8: there is no link \"pcie9\" in devices.toml\n"));
}

TEST(Cluster, LatencyMayBeNothing) {
  std::string text = kTwoNodes;
  EXPECT_EQ(parse_cluster(text.replace(text.find("bandwidth = 12.5"), 16, "latency = 0"), "c.toml").link(1, 2).latency, 0);
}

TEST(Cluster, Examples) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(tests_folder() + "/../examples/clusters")) {
    const ClusterSpec cluster = parse_cluster(read_file(entry.path().string()), entry.path().string());
    EXPECT_TRUE(entry.path().stem().string().ends_with(concat("-", cluster.devices.size()))) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 13);
}

// Times are those of a device of speed 1, whichever comes first; any other device needs one.
TEST(Cluster, WhoseFiguresTimeIt) {
  const auto cluster_of = [](const std::string& first, const std::string& second) {
    return parse_cluster(concat("[[devices]]\n", first, "\n[[devices]]\n", second, "\n[[levels]]\nsize = 2\nbandwidth = 1.0\n"), "c.toml");
  };
  const std::string a100 = "device = \"a100-40\"\n", v100 = "device = \"v100\"\n";
  EXPECT_EQ(figures_for(cluster_of(a100 + "speed = 1.24", v100)), "v100");
  EXPECT_EQ(figures_for(cluster_of(a100, v100 + "speed = 0.5")), "a100-40");
  EXPECT_EQ(figures_for(cluster_of(a100 + "speed = 0.9", a100 + "speed = 0.8")), "a100-40");
  EXPECT_EQ(figures_for(cluster_of("memory = 1.0", "")), "v100");
  EXPECT_EQ(figures_for(cluster_of(a100, a100), "h200"), "h200");
  EXPECT_EQ(message_of([&] { cluster_of(a100, v100); }),
            "c.toml:5:10: nothing says how fast v100 is beside a100-40\n"
            "  times are those of the first device without a speed; those of another are divided by its own\n  hint: give it a speed");
}

TEST(Cluster, OneDeviceNeedsNoLevels) {
  EXPECT_EQ(parse_cluster("[[devices]]\n", "one.toml").devices.size(), 1u);
}

// A number is in GB, GB/s or microseconds; a text says its own unit.
TEST(Cluster, TakesUnits) {
  const ClusterSpec plain =
      parse_cluster("[[devices]]\ncount = 2\nmemory = 16.0\n[[levels]]\nsize = 2\nbandwidth = 12.5\nlatency = 5\n", "plain.toml");
  const ClusterSpec units = parse_cluster(
      "[[devices]]\ncount = 2\nmemory = \"16GB\"\n[[levels]]\nsize = 2\nbandwidth = \"100Gbit/s\"\nlatency = \"5us\"\n", "units.toml");
  EXPECT_DOUBLE_EQ(units.devices[0].memory, 16e9);
  EXPECT_DOUBLE_EQ(units.levels[0].link.bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(units.levels[0].link.latency, 5e-6);
  EXPECT_DOUBLE_EQ(units.devices[0].memory, plain.devices[0].memory);
  EXPECT_DOUBLE_EQ(units.levels[0].link.bandwidth, plain.levels[0].link.bandwidth);
  EXPECT_DOUBLE_EQ(units.levels[0].link.latency, plain.levels[0].link.latency);
}

TEST(Cluster, MistakesInAFile) {
  EXPECT_EQ(failure("[[devices]"), "c.toml:1:11: Error while parsing table header: encountered end-of-file");
  EXPECT_EQ(failure(""), "c.toml: the cluster has no devices\n  hint: give some under [[devices]]");
  EXPECT_EQ(failure("\n\n", "\nlevel = 3\n"),
            "c.toml:2:1: the cluster has an unknown key \"level\"\n"
            "  known: name, devices, levels, between\n"
            "  hint: did you mean \"levels\"?");
  EXPECT_EQ(failure("\n\n", "\ncpus = 3\n"), "c.toml:2:8: stages are on devices, and no longer on host processors\n  hint: leave out cpus");
  EXPECT_EQ(failure("count = 2", "number = 2"),
            "c.toml:4:1: devices has an unknown key \"number\"\n"
            "  known: count, device, memory, speed, host");
  EXPECT_EQ(failure("count = 2", "count = 0"), "c.toml:4:9: devices.count must be a whole number from 1 to 1000000");
  EXPECT_EQ(failure("count = 2", "count = 200000"), "c.toml:4:9: a cluster has at most 100000 devices");
  EXPECT_EQ(failure("speed = 0.5", "speed = -1"), "c.toml:9:9: devices.speed must be a positive number");
  EXPECT_EQ(failure("speed = 0.5", "speed = 1e-300"), "c.toml:9:9: devices.speed must be from 1e-30 to 1e30");
  EXPECT_EQ(failure("bandwidth = 12.5", "latency = -1"),
            "c.toml:17:11: levels.latency must be a positive number\n  hint: with a unit it is a text, as 5us or 2s");
  EXPECT_EQ(failure("memory = 16.0", "memory = inf"),
            "c.toml:7:10: devices.memory must be a positive number\n  hint: with a unit it is a text, as 16GB or 512MiB");
  EXPECT_EQ(failure("memory = 16.0", "memory = \"16GB/s\""),
            "c.toml:7:10: devices.memory must be a positive number\n  hint: with a unit it is a text, as 16GB or 512MiB");
  EXPECT_EQ(failure("memory = 16.0", "memory = \"16\""),
            "c.toml:7:10: devices.memory must be a positive number\n  hint: with a unit it is a text, as 16GB or 512MiB");
  EXPECT_EQ(failure("size = 2\n", ""), "c.toml:11:1: levels has no key \"size\"");
  EXPECT_EQ(failure("link = \"nvlink2\"", "latency = 1"), "c.toml:11:1: levels has neither a link nor a bandwidth");
  EXPECT_EQ(failure("levels = 4\n[[devices]]\n"), "c.toml:1:10: levels must be tables, each headed by [[levels]]");
  EXPECT_EQ(failure("[3, 0]", "[3, 3]"), "c.toml:19:11: devices must be two different ones of 0 to 3");
  EXPECT_EQ(failure("[3, 0]", "[3, 4]"), "c.toml:19:11: devices must be two different ones of 0 to 3");
  EXPECT_EQ(failure("[3, 0]", "3"), "c.toml:19:11: devices must be two different ones of 0 to 3");
  EXPECT_EQ(failure(std::string(kTwoNodes) + "[[between]]\ndevices = [0, 3]\nlink = \"pcie3\"\n"),
            "c.toml:22:11: the link between devices 0 and 3 is given twice");
  EXPECT_EQ(failure("size = 2", "size = 3"),
            "c.toml: the levels hold 6 devices, the cluster has 4\n"
            "  sizes: 3 x 2\n"
            "  hint: the product of the levels' sizes must be the number of devices");
  EXPECT_EQ(failure("[[devices]]\ncount = 4\n"),
            "c.toml: nothing says what links the cluster's 4 devices have\n  hint: give them under [[levels]], with size = 4");
}

TEST(Cluster, NamesOfPublishedFigures) {
  const std::string link = failure("nvlink2", "nvlink1"), device = failure("v100", "v10");
  EXPECT_TRUE(link.starts_with("c.toml:13:8: there is no link \"nvlink1\" in devices.toml\n  known: ")) << link;
  EXPECT_TRUE(device.starts_with("c.toml:5:10: there is no device \"v10\" in devices.toml\n  known: ")) << device;
  EXPECT_TRUE(device.ends_with("hint: did you mean \"v100\"?")) << device;
}

TEST(Cluster, Uniform) {
  const ClusterSpec cluster = uniform_cluster(3, 1e9, 1e-6, 5);
  EXPECT_EQ(cluster.devices.size(), 3u);
  EXPECT_EQ(cluster.devices[2].memory, 5);
  EXPECT_EQ(cluster.link(0, 2).bandwidth, 1e9);
  EXPECT_EQ(cluster.link(2, 1).latency, 1e-6);
  EXPECT_EQ(message_of([] { uniform_cluster(0, 1); }), "a cluster of 0 devices\n  hint: give one device at least");
  EXPECT_EQ(message_of([] { uniform_cluster(1'000'000'000, 1); }), "a cluster of 1000000000 devices\n  hint: a cluster has at most 100000");
  EXPECT_EQ(message_of([] { uniform_cluster(1, 0); }), "a bandwidth of 0.0 bytes per second\n  hint: give a positive one");
  EXPECT_EQ(message_of([] { uniform_cluster(1, 1, -1); }), "a latency of -1.0 seconds\n  hint: give none, or a positive one");
  EXPECT_EQ(message_of([] { uniform_cluster(1, 1, 0, 0); }), "devices with 0.0 bytes of memory\n  hint: give a positive size");
}

}  // namespace
}  // namespace penstock::test
