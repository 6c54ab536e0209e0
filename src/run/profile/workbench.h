// SPDX-License-Identifier: Apache-2.0
// A workbench: devices, data and kernels that a configuration's programs are measured with.
#pragma once

#include <functional>
#include <memory>

#include "config/compile.h"
#include "data/dataset.h"
#include "devices/cluster.h"
#include "penstock/race.h"
#include "profile/profile.h"

namespace penstock {

// The data of the `number`-th run, from 1, of a program that does so many steps of training at once.
StepInput training_input(const Config& config, const Dataset& data, std::int64_t number, std::int64_t steps = 1);

struct Workbench {
  const Config& config;
  const ModelRegistry& models;
  std::shared_ptr<const Dataset> data;
  // A cluster of so many threads of this process; where it has one for each actor, run.straggler holds them back.
  std::function<std::unique_ptr<Cluster>(int devices)> threads;
  std::function<void(Program&)> choose_kernels;  // as the configuration says: costs are of the tasks' chosen graphs

  StepInput input(std::int64_t number, std::int64_t steps = 1) const { return training_input(config, *data, number, steps); }
};

// Returns how the configuration's steps are measured: `rounds` steps of each program, on its devices and over its backend.
ProfileOptions profile_options(const Config& config, int rounds);

// Throws Error unless the configuration's devices are of one process, which alone are measured here.
void check_threads(const Config& config);

// One step of the program on `cluster`, whose number is one above `number`'s; both of the first must outlive it.
TimedStep timed_step(const Workbench& bench, Cluster& cluster, Program program, std::shared_ptr<std::int64_t> number);
// Makes tables of the configuration's model ready to run on `cluster`, on which all of them go on with one count of steps. Both must
// outlive what it returns.
std::function<TimedStep(const Schedule&)> table_steps(const Workbench& bench, Cluster& cluster);

}  // namespace penstock
