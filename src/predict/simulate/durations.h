// SPDX-License-Identifier: Apache-2.0
// From measured costs to what the simulator counts with.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/costs.h"
#include "penstock/network.h"
#include "penstock/program.h"
#include "simulate/roofline.h"
#include "simulate/simulate.h"

namespace penstock {

enum class Measured : std::uint8_t {
  automatic,  // beside; for a program of one device alone
  alone,
  busy,
  beside,
};

struct CostContext {
  std::string file = "costs.json";        // what messages call the costs
  std::string backend = "threads";        // or gloo
  Measured which = Measured::automatic;   // what a task was not measured under is taken from what comes nearest
  std::optional<DeviceModel> roofline{};  // for what was not measured at all
};

// The command that measures what is missing on so many devices, with these flags of `penstock profile`, and "measures them".
std::string measuring_command(const CostContext& context, std::size_t devices, const std::string& flags);
// "F of stage 0, B of stage 0, and 3 more": so many names at most.
std::string first_few(std::vector<std::string> names, std::size_t most);

// Returns the sample that says what a measured task costs among so many devices; null where it was never run.
const Sample* chosen_sample(const TaskCost& cost, const CostContext& context, std::size_t devices);

// Seconds of each of the program's tasks. Throws Error where costs (and roofline) lack some: how many, the first few with their stages,
// which model was measured, and the command that would measure them.
IdVector<TaskId, double> task_seconds(const Program& program, const Costs& costs, const CostContext& context);

// Bytes that the kernels of each device's tasks allocate at most beside what the program plans; tasks that were not measured count 0.
std::vector<std::int64_t> kernel_bytes(const Program& program, const Costs& costs);

// Seconds that each instruction keeps its device, by device and instruction. Sends and receives are the network's to count and frees are
// free: 0. Throws Error as above, also for inputs.
Durations durations_of(const Program& program, const Costs& costs, const CostContext& context);

// Each device's link to its host's memory: unlimited where its own thread copies (durations_of counts it), as measured devices do.
Link host_link(const Costs& costs, const CostContext& context);

// The links between any two devices. Throws Error with the command that would measure them.
Network network_of(const Costs& costs, const CostContext& context);

}  // namespace penstock
