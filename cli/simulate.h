// SPDX-License-Identifier: Apache-2.0
// The arguments and helpers that the two halves of penstock simulate, tables and programs, share.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/amount.h"
#include "cli/fill.h"
#include "cli/table_options.h"
#include "penstock/network.h"
#include "penstock/table.h"
#include "penstock/trace.h"
#include "simulate/explain.h"
#include "simulate/simulate.h"
#include "simulate/table_machine.h"

namespace penstock {

// The flags whose times, and bandwidths, were given with a unit, and those whose times were given without one.
struct GivenUnits {
  std::vector<std::string> with, without;

  void note(const std::string& flag, const Amount& amount, Quantity quantity);
};

struct SimulateArguments {
  TableChoice table;                    // what to simulate: NAME, FILE.csv, FILE.rules, a program's file, or CONFIG.toml
  TableNumbers numbers;                 // what flags of numbers say; numbers_of and table_numbers add what follows
  std::vector<std::string> links;       // each "A-B:latency=L[,bandwidth=B]"
  std::vector<std::string> stragglers;  // each "ACTOR=FACTOR"
  GivenUnits units;
  std::string costs;
  // These are for programs and configurations.
  std::vector<std::string> figures;  // the name of a device's published figures, and a file of them
  std::string link;                  // the name of a link's
  std::string schedule, plan, mesh;  // for a configuration
  std::vector<std::string> settings;
  std::string against;  // the folder of a measured run
  const ModelRegistry* models = nullptr;
  const CLI::App* command = nullptr;  // whose options were given
  bool explain = false, show = false, json = false;
  std::string timeline;  // the file to write it to
  FillChoice fill;
};

// Whether the times of a table are in seconds: measured, or given with units.
bool in_seconds(const SimulateArguments& arguments);
// Said with times that are not.
inline constexpr const char* kOwnUnit = "times are in the unit of --forward";

// Simulates a schedule by name or from a file.
void simulate_table(const SimulateArguments& arguments);
// Simulates a program's text or a configuration's program.
void simulate_program(const SimulateArguments& arguments);

// Adds the flags from --forward to --parameters, links, --costs and --backend. `arguments` must outlive the command's parse.
void add_cost_options(CLI::App& command, SimulateArguments& arguments);

// The value of a flag that is a number, finite and not negative. Throws Error that names the flag.
double checked(const std::string& flag, double value);
// The numbers that flags give, for so many actors or devices, without measured costs. Throws Error that names the flag of one that is out
// of range, or that names an actor that there is not.
TableNumbers numbers_of(const SimulateArguments& arguments, std::int32_t actors);
// The numbers of a table's machine, with what --costs measured. Throws Error beside for flags that say nothing without each other, or the
// same twice, for times of which some have a unit and some have none, and for a file that holds no costs.
TableNumbers table_numbers(const SimulateArguments& arguments, std::int32_t actors);

}  // namespace penstock
