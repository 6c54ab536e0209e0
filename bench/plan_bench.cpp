// SPDX-License-Identifier: Apache-2.0
// Measures how long planners search on the measured graphs, for the rows whose original times are published (seconds on one core of a small
// machine): PipeDream 0.1 to 0.3, on resnet50 0.3, 0.9 and 3.7 on 4, 8 and 16 devices and 22 on 4x4; Piper 5 and 70 on 512 and 2048 devices
// of 80 GB, 3.3 on 512 of 8 GiB, under 0.3 else; dnn-partitioning under 0.1.
//
//   cmake --preset release -DPENSTOCK_BENCH=ON && ninja -C build plan_bench && build/bench/plan_bench ../shared/profiles
#include <benchmark/benchmark.h>

#include <string>

#include "base/text.h"
#include "penstock/plan.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

struct Row {
  std::string name, file;
  Plan (*planner)(const PlanProblem&, const PlanOptions&);
  ClusterSpec cluster;
};

ClusterSpec four_by_four() {
  ClusterSpec cluster = uniform_cluster(16, 1e9);
  cluster.levels = {{4, {0, 1e9}}, {4, {0, 1e9}}};
  return cluster;
}

std::vector<Row> rows() {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::vector<Row> out;
  for (const char* graph : {"vgg16", "alexnet", "resnet50", "gnmt"})
    for (const int devices : {4, 8, 16})
      out.push_back({concat("pipedream/", graph, "/", devices), concat("pipedream-", graph, "-graph.txt"), plan_by_pipedream,
                     uniform_cluster(devices, 1e9)});
  out.push_back({"pipedream/resnet50/4x4", "pipedream-resnet50-graph.txt", plan_by_pipedream, four_by_four()});
  const std::string bert = "piper-bert32a100.json";
  for (const int devices : {64, 512, 2048})
    out.push_back({concat("piper/80GB/", devices), bert, plan_by_piper, uniform_cluster(devices, 2.5e10, 0, 8e10)});
  out.push_back({"piper/8GiB/512", bert, plan_by_piper, uniform_cluster(512, 25 * kGiB, 0, 8 * kGiB)});
  out.push_back({"max-load/bert24/6", "dnn-partitioning-bert24_training.json", plan_by_max_load, uniform_cluster(6, 1e9, 0, 17185374208)});
  return out;
}

void search(benchmark::State& state, const Row& row, const std::string& folder) {
  PlanProblem problem;
  problem.graph = parse_plan_graph(read_file(concat(folder, "/", row.file)), row.file);
  problem.cluster = row.cluster;
  for (auto _ : state) benchmark::DoNotOptimize(row.planner(problem, {}).bottleneck);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::string folder = argc > 1 ? argv[1] : "../shared/profiles";
  for (const penstock::Row& row : penstock::rows())
    benchmark::RegisterBenchmark(row.name.c_str(), [=](benchmark::State& state) {
      penstock::search(state, row, folder);
    })->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
}
