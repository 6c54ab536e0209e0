// SPDX-License-Identifier: Apache-2.0
// HetPipe's virtual workers: the fastest of all ways to group devices, to cut the layers, and to run ahead.
#include "profile/planned_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "profile/planning.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/sample.h"

namespace penstock {
namespace {

using test::draw;
using test::loaded;
using test::message_of;
using test::planning;
using test::Random;

// Every cut of so many layers into so many stages.
std::vector<std::vector<int>> all_cuts(int layers, int stages) {
  if (stages == 1) return {{layers}};
  std::vector<std::vector<int>> out;
  for (int first = 1; first + stages - 1 <= layers; ++first)
    for (std::vector<int> rest : all_cuts(layers - first, stages - 1)) {
      rest.insert(rest.begin(), first);
      out.push_back(rest);
    }
  return out;
}

double slowest_stage(const std::vector<double>& layers, const std::vector<double>& speeds, const std::vector<int>& cut) {
  double out = 0;
  for (std::size_t stage = 0, layer = 0; stage < cut.size(); ++stage) {
    double load = 0;
    for (int i = 0; i < cut[stage]; ++i) load += layers[layer++] / speeds[stage];
    out = std::max(out, load);
  }
  return out;
}

TEST(PlannedWorkers, CutsAsNoOtherCutIsFaster) {
  for (int seed = 1; seed <= test::rounds(200); ++seed) {
    Random random(seed);
    std::vector<double> layers(static_cast<std::size_t>(draw(random, 1, 8)));
    std::vector<double> speeds(static_cast<std::size_t>(draw(random, 1, std::min(4, static_cast<int>(layers.size())))));
    for (double& time : layers) time = draw(random, 1, 9);
    for (double& speed : speeds) speed = draw(random, 1, 3);
    double least = std::numeric_limits<double>::infinity();
    for (const std::vector<int>& cut : all_cuts(static_cast<int>(layers.size()), static_cast<int>(speeds.size())))
      least = std::min(least, slowest_stage(layers, speeds, cut));
    const std::vector<int> found = balanced_cut(layers, speeds);
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0), static_cast<int>(layers.size()));
    EXPECT_DOUBLE_EQ(slowest_stage(layers, speeds, found), least) << "seed " << seed;
  }
}

TEST(PlannedWorkers, BeginAlikeAndAsNeighbours) {
  ClusterSpec cluster = uniform_cluster(4, 1);
  cluster.devices[0].speed = cluster.devices[1].speed = 2;
  const std::vector<VirtualWorkers> found = first_workers({1, 1, 1}, cluster, 2);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].devices, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(found[1].devices, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(found[1].layers, (std::vector<std::vector<int>>{{2, 1}, {2, 1}}));
  EXPECT_EQ(found[1].in_flight, 2);
}

// Keys of a small model and of its window.
constexpr int kWindow = 4;
std::vector<std::string> keys(std::vector<std::string> own) {
  own.insert(own.begin(), {"model.name=mlp", "width=512", "context=16", "batch=8", "microbatches=1", concat("window=", kWindow), "clip=0",
                           "optimiser=sgd", "momentum=0"});
  return own;
}

VariantPlanning planning_on(const ClusterSpec& cluster, const std::vector<std::string>& base) {
  VariantPlanning out = planning(base, [cluster](const ConfigVariant& of, const Prepared&, Program& program) {
    return predict_on(program, placed(cluster, of.cluster_devices), "v100");
  });
  out.cluster = cluster;
  out.memory = [cluster](int device) { return cluster.devices[static_cast<std::size_t>(device)].memory; };
  return out;
}

std::string list(const std::vector<int>& numbers) {
  return concat("[", join(numbers, ",", [](int n) { return std::to_string(n); }), "]");
}

// Lists of so many cuts, one for each worker, all combinations.
std::vector<std::string> cuts_of_workers(const std::vector<std::vector<int>>& cuts, int workers) {
  std::vector<std::string> out = {""};
  for (int w = 0; w < workers; ++w) {
    std::vector<std::string> next;
    for (const std::string& before : out)
      for (const std::vector<int>& cut : cuts) next.push_back(concat(before, before.empty() ? "" : ",", list(cut)));
    out = std::move(next);
  }
  return out;
}

// Every way to place the devices, up to devices and workers that are alike, as cluster_devices.
std::vector<std::string> placements(const ClusterSpec& cluster, int workers) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  const std::size_t stages = devices.size() / static_cast<std::size_t>(workers);
  std::set<std::vector<std::vector<std::pair<double, double>>>> known;
  std::vector<std::string> out;
  do {
    std::vector<std::vector<std::pair<double, double>>> kinds(static_cast<std::size_t>(workers));
    for (std::size_t d = 0; d < devices.size(); ++d) {
      const ClusterDevice& device = cluster.devices[static_cast<std::size_t>(devices[d])];
      kinds[d % static_cast<std::size_t>(workers)].push_back({device.speed, device.memory});
    }
    std::ranges::sort(kinds);
    if (known.insert(kinds).second) out.push_back(list(devices));
  } while (stages > 0 && std::ranges::next_permutation(devices).found);
  return out;
}

// Every number of workers, placement, cut, number in flight and distance (of a window's waves, or none in it), on links that are all alike.
std::vector<Settings> all_workers(const ClusterSpec& cluster, int layers) {
  std::vector<Settings> out;
  const int devices = static_cast<int>(cluster.devices.size());
  for (int workers = 1; workers <= devices; ++workers) {
    const int stages = devices / workers;
    if (devices % workers != 0 || stages > layers) continue;
    for (const std::string& placement : placements(cluster, workers))
      for (const std::string& cuts : cuts_of_workers(all_cuts(layers, stages), workers))
        for (int in_flight = 1; in_flight <= stages; ++in_flight)
          for (int distance = workers > 1 ? 0 : -1; distance <= (workers > 1 ? (kWindow + in_flight - 1) / in_flight : -1); ++distance)
            out.push_back({parse_override(concat("actors=", stages)), parse_override(concat("pipeline.data=", workers)),
                           parse_override("schedule=hetpipe"), parse_override(concat("pipeline.workers=[", cuts, "]")),
                           parse_override(concat("cluster_devices=", placement)), parse_override(concat("in_flight=", in_flight)),
                           parse_override(concat("pipeline.distance=", distance))});
  }
  return out;
}

// By how much the planned workers take longer than the fastest of all that fit.
double beyond_all(const ClusterSpec& cluster, const std::vector<std::string>& base, int layers) {
  const VariantPlanning with = planning_on(cluster, base);
  const int devices = static_cast<int>(cluster.devices.size());
  const ConfigVariant found = plan_variants(worker_settings(loaded(base), devices), with).variants[0];
  const ConfigVariant best = plan_variants(all_workers(cluster, layers), with).variants[0];
  EXPECT_TRUE(found.fits() && best.fits());
  const double beyond = found.prediction.seconds / best.prediction.seconds - 1;
  EXPECT_GE(beyond, -1e-9) << text(found.settings) << ", which is not among all";
  return beyond;
}

ClusterSpec cluster_of(const std::vector<double>& speeds, double bandwidth) {
  ClusterSpec out = uniform_cluster(static_cast<int>(speeds.size()), bandwidth, 5e-6);
  for (std::size_t d = 0; d < speeds.size(); ++d) out.devices[d].speed = speeds[d];
  return out;
}

// On four devices of two speeds and on three, over fast and slow links, with memory for all and for less.
TEST(PlannedWorkers, AreTheFastestOfAll) {
  test::Sample sample(2);
  struct Case {
    std::vector<double> speeds;
    double bandwidth;
    int layers;
    double memory = std::numeric_limits<double>::infinity();
  };
  for (const Case& one : {Case{{1, 1, 0.5, 0.5}, 1e11, 4}, Case{{1, 0.25, 1, 0.5}, 1e9, 4}, Case{{1, 0.5, 0.25}, 1e10, 5},
                          Case{{1, 1, 0.5, 0.5}, 1e10, 4, 8.8e6}}) {
    if (!sample.takes()) continue;
    ClusterSpec cluster = cluster_of(one.speeds, one.bandwidth);
    for (ClusterDevice& device : cluster.devices) device.memory = one.memory;
    EXPECT_NEAR(beyond_all(cluster, keys({concat("layers=", one.layers)}), one.layers), 0, 0.01)
        << join(one.speeds, " ", [](double speed) { return number(speed); }) << " at " << one.bandwidth;
  }
}

TEST(PlannedWorkers, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { worker_settings(loaded(keys({"window=1"})), 2); }),
            "pipeline.window is 1: workers are never drained between steps, and one step is drained\n  hint: --set pipeline.window=8");
  EXPECT_EQ(message_of([] { worker_settings(loaded({"model.name=vgg", "window=2"}), 2); }),
            "model \"vgg\" has no number of layers of which workers could have more or fewer\n  hint: models that have: gpt, mlp, t5, moe");
  const ClusterSpec cluster = uniform_cluster(2, 1e9);
  const VariantPlanning with = planning_on(cluster, keys({"layers=2", "actors=2"}));
  const auto refused = [&](const char* devices) {
    return message_of([&] { plan_variants({{parse_override(concat("cluster_devices=", devices))}}, with); });
  };
  const auto expect_refused = [&](const char* devices, const char* words) {
    EXPECT_NE(refused(devices).find(words), std::string::npos) << refused(devices);
  };
  expect_refused("[0]", "cluster_devices names 1 device, and the program has 2");
  expect_refused("[1,1]", "cluster_devices is [1,1], and \"1\" is no device, or named twice");
  expect_refused("[0,x]", "cluster_devices is [0,x], and \"x\" is no device, or named twice");
  expect_refused("[0,2]", "device 2 of the program's is none of cluster");
}

// A device's times are divided by its speed.
TEST(PlannedWorkers, SlowDevicesTakeLonger) {
  const std::vector<std::string> base = keys({"layers=2", "actors=1"});
  const auto seconds = [&](double speed) {
    return plan_variants({{}}, planning_on(cluster_of({speed}, 1e9), base)).variants[0].prediction.seconds;
  };
  EXPECT_NEAR(seconds(0.5), 2 * seconds(1), 1e-9);
}

}  // namespace
}  // namespace penstock
