// SPDX-License-Identifier: Apache-2.0
// penstock plan of whole configurations: --vary, and planners of these.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/device_name.h"
#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/clusters.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "config/config_text.h"
#include "cost/figures_for.h"
#include "penstock/error.h"
#include "profile/variants.h"
#include "report/table.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMostRows = 12;  // that are printed without --explain

bool is_local(const PlanArguments& arguments) {
  return arguments.cluster == "local";
}

// A comparison for a cluster, or for threads of this machine.
struct Compared {
  const PlanArguments& arguments;
  ClusterSpec cluster;  // of no devices for threads
  Config base;
  int devices = 0;

  // Actors follow from the devices, unless something says how many there are.
  Config load(const Settings& settings) const {
    Config config = load_planned(arguments, {}, settings);
    if (devices == 0 || config.overridden.contains("pipeline.actors")) return config;
    const int each = devices_with_members(config);
    if (devices % each != 0)
      throw Error(concat(devices, " devices are no multiple of the ", each, " of an actor (data, local, expert, context, tensor)"));
    Settings all = settings;
    all.push_back({"pipeline.actors", std::to_string(devices / each), "--cluster"});
    return load_planned(arguments, {}, all);
  }
};

Compared compared_of(const PlanArguments& arguments) {
  if (!is_config(arguments))
    throw Error(concat("whole configurations are compared of a model; ", arguments.what, " is taken as a graph"), {},
                "give CONFIG.toml or a model's name");
  if (!arguments.varied.empty() && arguments.planner != PlanArguments().planner)
    throw Error(concat("--planner ", arguments.planner, " says itself what it varies"), {}, "leave out --vary, or --planner");
  if (!arguments.micro_batches.empty())
    throw Error("--microbatch-sizes says sizes to planners of stages", {}, "--vary microbatches=4,8 says how many there are");
  const VariantPlanner* planner = find_variant_planner(arguments.planner);
  if (!arguments.only.empty() && !(planner && planner->takes_only))
    throw Error("--only is of --planner degrees and sequences", {}, "--vary KEY=VALUE fixes a key");
  if (!arguments.out.empty() && !arguments.out.ends_with(".toml"))
    throw Error(concat("--out ", arguments.out, ": a configuration is written"), {}, "--out FILE.toml, which train takes");
  Compared out{.arguments = arguments, .cluster = {}, .base = {}};
  out.base = out.load({});
  const int own = out.base.pipeline.table.actors * devices_with_members(out.base);
  if (is_local(arguments)) {
    check_threads(out.base);
  } else {
    PlanGraph none;
    none.devices = own;
    out.cluster = cluster_of(arguments, none);
  }
  out.devices = is_local(arguments) ? arguments.devices.value_or(own) : static_cast<int>(out.cluster.devices.size());
  return out;
}

std::string device_of(const Compared& of) {
  return figures_for(of.cluster, of.arguments.figures);
}

// Leaves the settings that have one of the values that `only` names for each key: "context=8,slices=1,slices=8".
std::vector<Settings> with_values(std::vector<Settings> all, const std::string& only) {
  std::map<std::string, std::set<std::string>> values;
  for (const std::string& one : split(only, ',')) {
    const Override named = parse_override(one);
    values[named.key].insert(named.value);
  }
  std::erase_if(all, [&](const Settings& settings) {
    return !std::ranges::all_of(values, [&](const auto& wanted) {
      const auto found = std::ranges::find(settings, wanted.first, &Override::key);
      return found != settings.end() && wanted.second.contains(found->value);
    });
  });
  if (all.empty()) throw Error(concat("--only ", only, ": no configuration has these values"), {}, "--explain lists all");
  return all;
}

PlannedVariants planned(const Compared& of) {
  const PlanArguments& arguments = of.arguments;
  VariantPlanning planning{.load = [&](const Settings& settings) { return of.load(settings); }, .models = arguments.models, .predict = {}};
  if (is_local(arguments)) {
    planning.progress = [&arguments](const std::string& text) { say_progress(arguments, text); };
    planning.cluster = uniform_cluster(of.devices, 1);
    planning.memory = [&](int) { return arguments.memory.value_or(ClusterDevice().memory); };
    planning.predict = [&](const ConfigVariant& variant, const Prepared& prepared, Program& program) {
      return predict_here(workbench_of(variant.config, *arguments.models), prepared, program, arguments.rounds);
    };
  } else {
    planning.memory = [&](int device) { return of.cluster.devices[static_cast<std::size_t>(device)].memory; };
    planning.cluster = of.cluster;
    planning.predict = [&](const ConfigVariant& variant, const Prepared&, Program& program) {
      return predict_on(program, placed(of.cluster, variant.cluster_devices), device_of(of));
    };
  }
  planning.slice_unit = arguments.slice_unit;
  if (arguments.limited) planning.limit = TimeLimit(arguments.options.seconds);
  std::vector<Settings> settings;
  if (arguments.varied.empty()) {
    const VariantPlanner& planner = *find_variant_planner(arguments.planner);
    settings = planner.settings(of.base, of.devices);
    planning.is_needless = planner.is_needless;
    if (!arguments.only.empty()) settings = with_values(std::move(settings), arguments.only);
  } else {
    std::vector<Varied> varied;
    for (const std::string& one : arguments.varied) varied.push_back(parse_varied(one));
    settings = combinations(varied);
  }
  PlannedVariants out = plan_variants(settings, std::move(planning));
  if (is_local(arguments)) {
    RaceOptions race{.steps = arguments.rounds};
    race.progress = [&arguments](const std::string& text) { say_progress(arguments, text); };
    race_variants(out.variants, *arguments.models, arguments.candidates, race,
                  [&](const Config& config) { return workbench_of(config, *arguments.models); });
  }
  return out;
}

double computing(const ConfigVariant& variant) {
  return variant.prediction.seconds * (1 - variant.prediction.bubble);
}

// The part of the step in which it loses most against the best.
std::string why_not(const ConfigVariant& variant, const ConfigVariant& best) {
  if (!variant.fits()) return "too large";
  const double later = variant.prediction.seconds - best.prediction.seconds, work = computing(variant) - computing(best);
  if (&variant == &best || later <= 0) return "";
  return work > later - work ? concat("computes +", time_text(work, true)) : concat("waits +", time_text(later - work, true));
}

std::string text_of(const Compared& of, const PlannedVariants& planned) {
  const std::vector<ConfigVariant>& all = planned.variants;
  std::vector<std::vector<std::string>> rows;
  std::size_t refused = 0, large = 0;
  for (const ConfigVariant& variant : all) {
    refused += !variant.refused.empty();
    large += variant.refused.empty() && !variant.fits();
    if (!variant.refused.empty() || (rows.size() == kMostRows && !of.arguments.explain)) continue;
    const Prediction& p = variant.prediction;
    rows.push_back({text(variant.settings), time_text(p.seconds, true), fixed(100 * p.bubble, 1) + " %", bytes_text(variant.largest()),
                    variant.measured.count > 0 ? time_text(variant.measured.median, true) : "", why_not(variant, all[0])});
  }
  std::string out =
      concat(of.base.model.name, " on ",
             is_local(of.arguments) ? concat(of.devices, is_host(of.base.run.device) ? " threads" : " devices", " of this machine")
                                    : of.cluster.name,
             ": ", counted(std::ssize(all), "configuration"), " of ", planned.considered, " compiled, ", refused, " refused, ", large,
             " too large\n\n");
  out += table({"configuration", "step", "idle", "memory", "measured", "loses by"}, rows);
  if (!of.arguments.explain) return out;
  for (const ConfigVariant& variant : all)
    if (!variant.refused.empty()) out += concat("\nrefused: ", text(variant.settings), ": ", variant.refused);
  return out + "\n";
}

// The configuration, which knows nothing of a cluster: which of its devices are the run's stands above it.
std::string configuration_text(const ConfigVariant& best, const ModelRegistry& models) {
  const std::string devices = join(best.cluster_devices, ", ", [](int device) { return std::to_string(device); });
  return concat("# The devices of a run are devices ", devices, " of the cluster, in this order.\n", explained(best.config, models));
}

ordered_json json_of(const ConfigVariant& variant) {
  ordered_json settings = ordered_json::object();
  for (const Override& one : variant.settings) settings[one.key] = one.value;
  if (!variant.refused.empty()) return {{"settings", settings}, {"refused", variant.refused}};
  ordered_json out = {{"settings", settings},
                      {"predicted_time", variant.prediction.seconds},
                      {"bubble", variant.prediction.bubble},
                      {"memory", variant.prediction.memory},
                      {"fits", variant.fits()},
                      {"measured_time", nullptr}};
  if (variant.measured.count > 0) out["measured_time"] = variant.measured.median;
  return out;
}

}  // namespace

void plan_variants_command(const PlanArguments& arguments) {
  const Compared compared = compared_of(arguments);
  const PlannedVariants found = planned(compared);
  if (!arguments.out.empty()) write_file(arguments.out, configuration_text(found.variants[0], *arguments.models));
  if (!arguments.json) {
    std::fputs(text_of(compared, found).c_str(), stdout);
    return;
  }
  ordered_json out = {{"kind", "configurations"},
                      {"model", compared.base.model.name},
                      {"cluster", is_local(arguments) ? "local" : compared.cluster.name},
                      {"considered", found.considered},
                      {"configurations", ordered_json::array()}};
  for (const ConfigVariant& variant : found.variants) out["configurations"].push_back(json_of(variant));
  print_json(out);
}

}  // namespace penstock
