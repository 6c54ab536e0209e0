// SPDX-License-Identifier: Apache-2.0
// Measures how fast tables are made, checked and simulated; items are actions.
//
//   cmake --preset release -DPENSTOCK_BENCH=ON && ninja -C build table_bench && build/bench/table_bench
#include <benchmark/benchmark.h>

#include <string_view>

#include "penstock/schedule.h"
#include "penstock/table.h"

namespace penstock {
namespace {

// The table for the benchmark's numbers of actors and micro-batches.
Schedule table_of(const benchmark::State& state, const char* name) {
  const int chunks = std::string_view(name) == "interleaved-1f1b" ? 2 : 1;
  return make_schedule(name,
                       {.actors = static_cast<int>(state.range(0)), .microbatches = static_cast<int>(state.range(1)), .chunks = chunks});
}

void count(benchmark::State& state, const Schedule& schedule) {
  std::int64_t actions = 0;
  for (const auto& row : schedule.actors) actions += static_cast<std::int64_t>(row.size());
  state.SetItemsProcessed(state.iterations() * actions);
}

void simulate_on(benchmark::State& state, const char* name, const TableOptions& options) {
  const Schedule schedule = table_of(state, name);
  const StageShape shape = chain(schedule.stages());
  const TableCosts costs = uniform_costs(schedule.stages(), {.bytes = 4});
  for (auto _ : state) benchmark::DoNotOptimize(time_table(schedule, shape, costs, options).makespan);
  count(state, schedule);
}

void simulate_1f1b(benchmark::State& state) {
  simulate_on(state, "1f1b", {});
}
void simulate_zero_bubble(benchmark::State& state) {
  simulate_on(state, "zb-h1", {});
}
void simulate_interleaved(benchmark::State& state) {
  simulate_on(state, "interleaved-1f1b", {});
}
void simulate_latency_and_bandwidth(benchmark::State& state) {
  simulate_on(state, "1f1b", {.network = {.link = {.latency = 0.1, .bandwidth = 32}}});
}
void simulate_shared_medium(benchmark::State& state) {
  simulate_on(state, "1f1b", {.network = {.link = {.latency = 0.1, .bandwidth = 3200, .medium = 0}}});
}

void make_check_and_simulate(benchmark::State& state) {
  for (auto _ : state) {
    const Schedule schedule = table_of(state, "1f1b");
    const StageShape shape = chain(schedule.stages());
    validate(schedule, shape);
    benchmark::DoNotOptimize(time_table(schedule, shape, uniform_costs(schedule.stages())).makespan);
  }
  count(state, table_of(state, "1f1b"));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Args({8, 32})->Args({32, 128})->Args({128, 512})->Args({1024, 4096})->Unit(benchmark::kMillisecond);
}
BENCHMARK(simulate_1f1b)->Apply(sizes);
BENCHMARK(simulate_zero_bubble)->Apply(sizes);
BENCHMARK(simulate_interleaved)->Apply(sizes);
BENCHMARK(simulate_latency_and_bandwidth)->Apply(sizes);
BENCHMARK(simulate_shared_medium)->Apply(sizes);
BENCHMARK(make_check_and_simulate)->Apply(sizes);

}  // namespace
}  // namespace penstock
