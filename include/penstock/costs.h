// SPDX-License-Identifier: Apache-2.0
// The costs of tasks and links on a machine, as `penstock profile` measured them: one JSON file.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/network.h"
#include "penstock/program.h"

namespace penstock {

// The seconds that repeated runs of one thing took.
struct Sample {
  double median = 0, spread = 0;  // seconds; spread: the median distance from the median
  std::int64_t count = 0;         // runs that were measured
  // Without the shortest and the longest twentieth: what a step, a sum of many, is made of. Over Gloo a run that a message interrupts takes
  // longer, which the median does not see; a run that another program interrupts is left out.
  double mean = 0;                                           // 0: not known
  double usual() const { return mean > 0 ? mean : median; }  // seconds: the mean, or the median where it is not known
};

// A structurally distinct task.
struct TaskCost {
  std::uint64_t hash = 0;  // cost_hash of its graph
  std::string name;        // in the program it was measured in
  // For an action's task: its kind, stage, and the number of stages of that cut. stage -1: before or after the loop.
  Kind kind = Kind::F;
  std::int32_t stage = -1, stages = 0;
  bool light = false;                    // an F that leaves to R what only its own backward reads
  std::optional<Sample> alone, busy;     // with the other devices idle; with all devices computing
  std::map<std::string, Sample> beside;  // in the whole program, by backend
  std::int64_t kernel_bytes = 0;         // that its kernels allocate at once beside what a program plans for it
};

// Returns the key that a task's time is looked up by: its graph's structural hash with scalar constants aside, as no kernel's time depends
// on them (a learning rate, an epsilon, the number of steps in a schedule of the learning rate).
std::uint64_t cost_hash(const Graph& graph);

// Seconds of an action of a micro-batch of any shape, with what belongs to it (inputs, messages): what each amount of its load adds
// (batch/load_fit.h).
struct ActionFit {
  Kind kind = Kind::F;                 // of the action
  std::int32_t stage = 0;              // in a cut of BatchFit::stages
  std::array<double, 7> per_amount{};  // seconds for one of each amount, in the order of batch/load_fit.h
};
// Batches whose micro-batches have shapes of their own, under one cut of the model.
struct BatchFit {
  std::int32_t stages = 0;         // of the cut that was measured
  std::vector<ActionFit> actions;  // one for each stage and kind that was measured
  double beyond = 0;               // seconds of a step beyond its table: before the first micro-batch, and after the last
  double spread = 0;               // the median distance of measured steps from what these figures say, as a share
  std::string under = {};          // the axes of each actor's devices, and what backwards computed again: "data=2, recompute=selective"
};

// The machine that costs hold for.
struct MachineDescription {
  std::string processor;          // its name, as the system gives it
  std::int64_t cores = 0;         // hardware threads of the machine
  std::int64_t memory_bytes = 0;  // of the machine
  std::string build;              // Penstock's and the libraries' versions
};

// In Costs::links: between a device that copies by itself and its host, both directions in turn.
inline constexpr const char* kHostLink = "host";

// A profile: what `penstock profile` writes, and what predictions take in place of published figures.
struct Costs {
  MachineDescription machine;         // where all of it was measured
  std::string model;                  // what was profiled, in words: "gpt, f32: layers 4, width 64, ..."
  std::vector<TaskCost> tasks;        // no two of one hash
  std::map<std::string, Link> links;  // by backend, and kHostLink
  // By backend, where its collectives do not follow from its links: Network::collectives.
  std::map<std::string, std::map<Opcode, Link>> collectives;
  std::map<std::string, double> step_overhead;  // by backend: seconds of a step beyond the last device's work
  std::map<std::string, double> input_seconds;  // by data port: filling one input
  double copy_bandwidth = 0;                    // bytes per second of a device that copies a slot; 0: not measured
  std::map<std::string, BatchFit> batches;      // by backend
};

// Throws Error with file and key: no JSON, another kind of file or version, a missing, unknown or doubled key, a number that is none,
// negative or not finite, a doubled task.
Costs parse_costs(std::string_view json, const std::string& file);
std::string print(const Costs& costs);  // parse_costs reads it back

// Adds what was measured later, in the place of the same measured earlier. Throws Error where `newer` is of another machine, build or
// model than `file`, from which `costs` came.
void merge(Costs& costs, const Costs& newer, const std::string& file);

// Tasks are named by the structural hash of their graph: "0x0123456789abcdef".
std::string hash_text(std::uint64_t hash);

}  // namespace penstock
