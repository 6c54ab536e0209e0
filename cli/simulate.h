// SPDX-License-Identifier: Apache-2.0
// The arguments and helpers that the two halves of penstock simulate, tables and programs, share.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/fill.h"
#include "cli/table_options.h"
#include "penstock/network.h"
#include "penstock/table.h"
#include "penstock/trace.h"
#include "simulate/explain.h"
#include "simulate/simulate.h"

namespace penstock {

struct SimulateArguments {
  TableChoice table;  // what to simulate: NAME, FILE.csv, FILE.rules, a program's file, or CONFIG.toml
  std::optional<double> forward, backward, input, weight;
  std::optional<double> recompute, offload, kept, gather, reduce, parameters;
  std::optional<double> latency, bandwidth, bytes;
  std::vector<std::string> links;  // each "A-B:latency=L[,bandwidth=B]"
  bool per_stage = false, atomic_pairs = false;
  std::vector<double> stage_times, slice_times;  // relative to one another; empty: alike
  double jitter = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> stragglers;  // each "ACTOR=FACTOR"
  std::string costs, backend = "threads";
  // These are for programs and configurations.
  std::vector<std::string> figures;  // the name of a device's published figures, and a file of them
  std::string link;                  // the name of a link's
  std::string schedule, plan, mesh;  // for a configuration
  std::vector<std::string> settings;
  std::string against;  // the folder of a measured run
  const ModelRegistry* models = nullptr;
  bool explain = false, show = false, json = false;
  std::string timeline;  // the file to write it to
  FillChoice fill;
};

// Said with times that are neither measured nor published.
inline constexpr const char* kOwnUnit = "times are in the unit of --forward";

// Simulates a schedule by name or from a file.
void simulate_table(const SimulateArguments& arguments);
// Simulates a program's text or a configuration's program.
void simulate_program(const SimulateArguments& arguments);

// Adds the flags from --forward to --parameters, links, --costs and --backend. `arguments` must outlive the command's parse.
void add_cost_options(CLI::App& command, SimulateArguments& arguments);

// The value of a flag that is a number, finite and not negative. Throws Error that names the flag.
double checked(const std::string& flag, double value);
// `network` with --latency and --bandwidth in place of its own, and the links of --link. Throws Error that names the flag.
Network network_of(const SimulateArguments& arguments, std::int32_t devices, Network network);
// The costs that --forward to --weight and --bytes give. B takes I and W together, unless it is given; I and W take half of B each, unless
// they are given.
UnitCosts unit_costs(const SimulateArguments& arguments);
// Puts --recompute-time to --parameters, for stages that are each `share` of an actor, into costs that came from flags or were measured, of
// each stage or of each of its `slices`. Throws Error that names the flag.
void set_memory_costs(const SimulateArguments& arguments, double share, TableCosts& costs, std::int32_t slices = 1);
// Puts --bytes, of one transfer of a micro-batch or of each of its `slices`, into measured costs. Throws Error that names the flag.
void set_bytes(const SimulateArguments& arguments, std::int32_t slices, TableCosts& costs);
// The schedule as the flags want it: with --gather under fully sharded parameters.
Schedule as_sharded(const SimulateArguments& arguments, Schedule schedule);
// Throws Error where --bytes and a bandwidth are not given together.
void check_bytes(const SimulateArguments& arguments);
// The disturbance that --jitter, --seed and --straggler describe. Throws Error that names the flag.
Disturbance disturbance_of(const SimulateArguments& arguments, std::int32_t devices);

nlohmann::json json_of(const Timeline& timeline, const Explanation& explanation);
// A table that shows for each device where its idle time goes.
std::string idle_table(const Timeline& timeline, const Explanation& explanation);

}  // namespace penstock
