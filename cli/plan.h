// SPDX-License-Identifier: Apache-2.0
// penstock plan: what its parts share.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/log.h"
#include "config/plan_model.h"
#include "penstock/explain_plan.h"
#include "penstock/trace.h"

namespace penstock {

struct PlanArguments {
  std::string what;     // a graph's file, CONFIG.toml, or a model's name
  std::string cluster;  // a file, "local", or "" for a uniform one
  std::optional<int> devices;
  std::optional<double> bandwidth, latency, memory;
  std::string planner = "best";
  std::string figures;  // the device whose published figures count; "": as figures_for says
  std::string device;   // of --cluster local: run.device; else what figures were called
  PlanOptions options;
  std::vector<int> micro_batches;
  int batch = 0;             // samples of a step; 0: as the graph or the configuration says
  bool no_replicas = false;  // one device for each stage
  // Flags for configurations.
  std::vector<std::string> settings;
  int nodes = 64;                   // at most
  int candidates = 3, rounds = 10;  // of --cluster local: plans to measure, and steps of each
  bool explain = false, json = false;
  std::string out;
  std::string only, states;         // of planner degrees
  std::vector<std::string> varied;  // --vary: keys whose values are tried
  std::int64_t slice_unit = 0;      // tokens that planned slices are multiples of; 0: by their length
  bool limited = false;             // whether --seconds was given
  Log log;
  const ModelRegistry* models = nullptr;
  const CLI::App* command = nullptr;  // whose options were given
};

// A plan as the command prints it.
struct PlanReport {
  PlannedModel planned;
  std::vector<std::string> assumed;  // the figures that neither flags nor files give, and what is taken for them
  std::optional<PlanExplanation> explanation;
};
void print_plan(const PlanArguments& arguments, const PlanReport& report);

// Whole configurations are compared, by --vary or a planner of them (profile/variants.h): plan_variants.cpp.
void plan_variants_command(const PlanArguments& arguments);

// The cluster that flags or a file name; throws Error where they do not fit each other. graph: what a graph's file says of devices.
ClusterSpec cluster_of(const PlanArguments& arguments, const PlanGraph& graph);
bool is_config(const PlanArguments& arguments);
// The configuration that is planned, with overrides ahead of those that flags give, and behind them.
Config load_planned(const PlanArguments& arguments, std::vector<Override> ahead, const std::vector<Override>& behind);
void say_progress(const PlanArguments& arguments, const std::string& text);

}  // namespace penstock
