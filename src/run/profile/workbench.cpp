// SPDX-License-Identifier: Apache-2.0
#include "profile/workbench.h"

#include <algorithm>
#include <iterator>

#include "base/device_name.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/backends.h"

namespace penstock {

StepInput training_input(const Config& config, const Dataset& data, std::int64_t number, std::int64_t steps) {
  const std::int64_t first = (number - 1) * steps;
  StepInput out{.step = first + 1, .seed = config.train.seed, .samples = {}, .steps = steps};
  for (std::int64_t step = first; step < first + steps; ++step)
    std::ranges::copy(data.training_samples(step * config.train.batch), std::back_inserter(out.samples));
  return out;
}

ProfileOptions profile_options(const Config& config, int rounds) {
  return {.backend = config.pipeline.backend, .by_itself = !is_host(config.run.device), .rounds = rounds, .input = {}};
}

void check_threads(const Config& config) {
  if (!find_backend(config.pipeline.backend).processes) return;
  throw Error(concat("--cluster local measures threads; pipeline.backend is ", config.pipeline.backend), {},
              "plan with threads and run the plan with any backend");
}

TimedStep timed_step(const Workbench& bench, Cluster& cluster, Program program, std::shared_ptr<std::int64_t> number) {
  bench.choose_kernels(program);
  return [&bench, &cluster, number = std::move(number), id = cluster.load(program)] {
    return cluster.step(id, bench.input(++*number)).seconds;
  };
}

std::function<TimedStep(const Schedule&)> table_steps(const Workbench& bench, Cluster& cluster) {
  return [&bench, &cluster, step = std::make_shared<std::int64_t>(0)](const Schedule& table) {
    Prepared prepared = prepare(bench.config, table, bench.config.pipeline.table.microbatches, bench.models);
    spread_actors(bench.config, prepared);
    return timed_step(bench, cluster, compile_training(bench.config, prepared), step);
  };
}

}  // namespace penstock
