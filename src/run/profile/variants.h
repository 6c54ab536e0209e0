// SPDX-License-Identifier: Apache-2.0
// Configurations that differ in the values of some keys: each is compiled, proven and predicted whole, and the fastest that fits comes
// first.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/compile.h"
#include "cost/time_limit.h"
#include "penstock/plan.h"
#include "penstock/predict.h"
#include "profile/workbench.h"

namespace penstock {

using Settings = std::vector<Override>;

struct Varied {
  std::string key;
  std::vector<std::string> values;  // at least one
};
// Reads "slices=1,4,[5,3,2]". Throws Error without '=' or where a value is empty.
Varied parse_varied(std::string_view text);

// The value of key slices for lengths that are found (planned_slices.h), "slices=planned"; of key stage_layers for a cut of the backbone,
// and of frozen for shares of frozen stages (planned_filling.h); of pipeline.workers for virtual workers (planned_workers.h).
inline constexpr std::string_view kPlanned = "planned";

// Every combination of values, those of the last key varying fastest. Throws Error where there are more than kMostVariants.
std::vector<Settings> combinations(const std::vector<Varied>& varied);
inline constexpr std::size_t kMostVariants = 10'000;

// The choices of the systems for long sequences, and mixtures of them, for the configuration on so many devices: every order of whole or
// sliced micro-batches, in 2, 8 or 32 slices of at least 128 tokens (TeraPipe 2102.07988, Seq1F1B 2406.03488, SlimPipe 2504.14519, also
// with its exchange or with the vocabulary in a part for each actor), in some orders also of planned lengths, HelixPipe (2507.00394) where
// micro-batches are whole rounds, all with the sequence split over 1, 2, 4, .. devices beside (context parallelism), and each without and
// then with recomputation.
std::vector<Settings> sequence_settings(const Config& config, int devices);

// DiffusionPipe's choices (2405.01248) for a configuration with frozen stages in front of a trained backbone, on up to so many devices: how
// many actors, how many stages the encoders are, and planned cuts and shares. Throws Error for a model without, and for a window of one
// step.
std::vector<Settings> filling_settings(const Config& config, int devices);

// HetPipe's choices (2005.14038) for a window of several steps on all of so many devices: each number of workers that divides them, whose
// devices, layers, micro-batches in flight and distance are planned. Throws Error for a model without layers, and for a window of one step.
std::vector<Settings> worker_settings(const Config& config, int devices);

struct ConfigVariant {
  Settings settings;
  Config config = {};
  std::string refused = {};               // why it cannot be run or predicted, in a line; else empty
  Prediction prediction = {};             // of a training step, without its timeline
  std::vector<int> cluster_devices = {};  // which device of the cluster each of the program's is: of the setting "cluster_devices"
  std::vector<double> devices = {};       // bytes that each device may hold
  Sample measured = {};                   // seconds of whole steps; count: the rounds that it was in, 0 where it did not race

  bool fits() const;
  double largest() const;  // bytes planned on the fullest device
};

// Whether settings only recompute what fits without (`before`): it takes longer.
bool recomputes_needlessly(const Settings& settings, const ConfigVariant& before);

struct VariantPlanning {
  std::function<Config(const Settings&)> load;
  const ModelRegistry* models = nullptr;
  // Says what a program of the variant takes, whose configuration and devices are known. Throws Error where nothing says it.
  std::function<Prediction(const ConfigVariant& of, const Prepared& prepared, Program& program)> predict;
  std::function<double(int device)> memory = [](int) { return ClusterDevice().memory; };  // bytes, of a device of the cluster
  ClusterSpec cluster = {};  // whose devices form virtual workers, where these are planned
  // Whether a configuration need not be looked at, as the one looked at before is better; none: all are.
  std::function<bool(const Settings& settings, const ConfigVariant& before)> is_needless{};
  std::function<void(const std::string& text)> progress{};
  TimeLimit limit = {};
  std::int64_t slice_unit = 0;  // tokens: planned slices are multiples of it; 0: slice_unit() of the sequence
};
struct PlannedVariants {
  std::vector<ConfigVariant> variants = {};  // those that fit, then those that are too large, each the fastest first; then the refused
  std::size_t considered = 0;                // there are fewer variants where time was over
};
// Settings with slices=planned become one variant with lengths: the fastest that fits of 2 and 16 equal slices and of what plan_slices
// (planned_slices.h) makes of these and of its own plans, as long as it finds others, or three times. Settings with stage_layers=planned
// become one with the fastest cut: of best_cut (planned_filling.h) and of what changing it by a layer at a time makes of it. Settings with
// pipeline.workers=planned become one with the fastest workers: of first_workers (planned_workers.h), and of what changing one thing at a
// time makes of them.
// Throws Error where none can be run, with the reasons, and where none fits, with the smallest.
PlannedVariants plan_variants(const std::vector<Settings>& settings, VariantPlanning planning);

// A planner of whole configurations. It is none of planners() (penstock/plan.h), as these find stages of a graph and know no configuration.
struct VariantPlanner {
  std::string name;
  std::string summary;  // one line
  std::vector<Settings> (*settings)(const Config& config, int devices);
  bool (*is_needless)(const Settings& settings, const ConfigVariant& before) = nullptr;  // as in VariantPlanning
  bool takes_only = false;  // whether some values of its settings may be asked for alone (plan --only)
};
const std::vector<VariantPlanner>& variant_planners();
const VariantPlanner* find_variant_planner(std::string_view name);  // null: there is none of this name

// The cluster of these devices alone, in this order. Throws Error where it has no such device.
ClusterSpec placed(const ClusterSpec& cluster, const std::vector<int>& devices);

// By published figures of the cluster's device: tasks by its roofline and each device's speed, transfers and collectives over the cluster's
// links, of which device d of the program is device d. Throws Error where the program has more devices than the cluster.
Prediction predict_on(const Program& program, const ClusterSpec& cluster, const std::string& device);
// By what is measured here, in `rounds` steps of the program by threads.
Prediction predict_here(const Workbench& bench, const Prepared& prepared, Program& program, int rounds);

// Runs the first `candidates` that fit in turn, in whole steps, and puts the fastest first. bench_of: the configuration outlives it.
void race_variants(std::vector<ConfigVariant>& variants, const ModelRegistry& models, int candidates, const RaceOptions& options,
                   const std::function<Workbench(const Config&)>& bench_of);

// "slices=4 pipeline.context=2"
std::string text(const Settings& settings);

}  // namespace penstock
