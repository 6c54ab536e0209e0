#include <gtest/gtest.h>

#include "penstock/plan.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TEST(Cluster, DevicesLevelsAndLinks) {
  const ClusterSpec cluster = parse_cluster(
      "name = \"two nodes\"\ncpus = 1\n"
      "[[devices]]\ncount = 3\nmemory = 16e9\n[[devices]]\nspeed = 0.5\n"
      "[[levels]]\nsize = 2\nbandwidth = 3e11\n[[levels]]\nsize = 2\nlatency = 1e-5\nbandwidth = 1e10\n"
      "[[links]]\nbetween = [3, 0]\nbandwidth = 7\n",
      "c.toml");
  EXPECT_EQ(cluster.name, "two nodes");
  EXPECT_EQ(cluster.cpus, 1);
  ASSERT_EQ(cluster.devices.size(), 4u);
  EXPECT_EQ(cluster.devices[2].memory, 16e9);
  EXPECT_EQ(cluster.devices[3].speed, 0.5);
  EXPECT_EQ(cluster.link(0, 1).bandwidth, 3e11);
  EXPECT_EQ(cluster.link(1, 2).latency, 1e-5);
  EXPECT_EQ(cluster.link(0, 3).bandwidth, 7);
  EXPECT_EQ(parse_cluster("[[devices]]\n", "one.toml").name, "one.toml");
}

TEST(Cluster, BadFilesAreNamed) {
  const auto message = [](const std::string& text) { return message_of([&] { parse_cluster(text, "c.toml"); }); };
  const std::string two = "[[devices]]\ncount = 2\n";
  EXPECT_EQ(message(""), "c.toml: the cluster has no devices\n  hint: give one at least: [[devices]]");
  EXPECT_EQ(message("[[devices]]\ncount = 0\n"), "c.toml:2:9: devices.count must be a whole number from 1 to 65536");
  EXPECT_EQ(message("[[devices]]\nmemory = -1\n"), "c.toml:2:10: devices.memory must be a positive number");
  EXPECT_EQ(message("[[devices]]\nspeeed = 1\n"),
            "c.toml:2:1: devices has an unknown key \"speeed\"\n  known: count, speed, memory\n  hint: did you mean \"speed\"?");
  EXPECT_EQ(message("devices = 4\n"), "c.toml:1:11: devices must be a list of tables\n  hint: write [[devices]]");
  EXPECT_EQ(message(two),
            "c.toml: the levels hold 1 devices, there are 2\n  sizes: \n"
            "  hint: give levels, innermost first, whose sizes multiply to the number of devices");
  EXPECT_EQ(message(two + "[[levels]]\nsize = 2\nlatency = -1\n"), "c.toml:5:11: levels.latency must be a number, 0 or above");
  EXPECT_EQ(message(two + "[[levels]]\nbandwidth = 1\n"), "c.toml:3:1: levels has no key \"size\"");
  EXPECT_EQ(message(two + "[[levels]]\nsize = 2\n[[links]]\nbetween = [0, 2]\n"),
            "c.toml:6:11: links.between must be two devices\n  devices are 0 to 1\n  hint: between = [0, 1]");
  EXPECT_EQ(message(two + "[[levels]]\nsize = 2\n[[links]]\nbetween = [0, 1]\n[[links]]\nbetween = [1, 0]\n"),
            "c.toml:8:11: the link between 0 and 1 is there twice");
}

}  // namespace
}  // namespace penstock
