// SPDX-License-Identifier: Apache-2.0
// Measures the costs of a program's tasks and of the links between its devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/compile.h"
#include "devices/cluster.h"
#include "penstock/costs.h"
#include "penstock/program.h"
#include "penstock/schedule.h"
#include "profile/profile_cluster.h"

namespace penstock {

// Tables on the stages and actors of `schedule` whose tasks together are those of any table there: the table itself, and one with every
// backward split (where it has whole ones), or none (where it has split ones), and nothing recomputed; with backwards of the same stages.
// Where a W is on another actor than its I they cannot be joined: then there is only the table itself.
std::vector<Schedule> profiled_tables(const Schedule& schedule);

struct ProfileOptions {
  std::string backend = "threads";
  bool by_itself = false;  // whether devices compute and send by themselves while their hosts go on: a transfer keeps neither end
  int rounds = 10;         // measured steps of each program and kind of step
  int warm_up = 2;         // steps before them; of one second or more, only one
  std::function<StepInput(std::int64_t number, const Program& program)> input;  // the data of the program's run with this number, from 1
  std::function<void(const std::string& text)> progress{};                      // called with a line at the begin of each part
};

// Measures times of every structurally distinct task of the programs (of one model and stage cut): in whole steps (`beside`); with
// `isolation`, also with all devices computing at once (where there are several) and with each device alone. Also the links' times, where
// there are two devices or more, inputs and the overhead of a step. The caller sets machine and model. Throws what the cluster throws.
Costs measure_costs(Cluster& cluster, Isolation* isolation, const std::vector<Program>& programs, const StateSource& state,
                    const ProfileOptions& options);

// Measures the link between devices 0 and 1, by messages to and fro with pauses long enough for the waiting end to sleep; sizes lie around
// `bytes`, which a typical transfer has. Sets links[options.backend] and copy_bandwidth.
void measure_link(Cluster& cluster, const ProfileOptions& options, std::int64_t bytes, Costs& costs);

// Describes this machine; `libraries` names what computes: "libtorch 2.13.0". `processor`: what stages compute on, "": the host.
MachineDescription describe_machine(const std::string& libraries, const std::string& processor = "");
// Describes the model: "gpt, f32: context 128, heads 4, ...".
std::string describe_model(const Config& config);

// The median, and the median distance from it, of at least one value.
Sample sample_of(std::vector<double> values);

}  // namespace penstock
