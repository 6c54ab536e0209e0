// SPDX-License-Identifier: Apache-2.0
#include "profile/variants.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <tuple>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cost/cost_model.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/planned_filling.h"
#include "profile/planned_slices.h"
#include "profile/planned_workers.h"
#include "profile/profile.h"
#include "simulate/prediction.h"

namespace penstock {
namespace {

constexpr std::int64_t kLeastTokens = 128;  // of a slice: products with fewer rows waste what they run on

Override varied(const std::string& key, const std::string& value) {
  return {key, value, "--planner"};
}

// Orders of whole or sliced micro-batches on so many actors.
std::vector<Settings> orders_on(const Config& config, int actors) {
  std::vector<Settings> out;
  std::vector<std::int64_t> slices;
  for (std::int64_t n = 2; n <= 32 && context_of(config) / n >= kLeastTokens; n *= 4) slices.push_back(n);
  if (actors == 1) {  // does the same in any order
    out.push_back({varied("schedule", "1f1b"), varied("slices", "1")});
    for (const std::int64_t n : slices) out.push_back({varied("schedule", "1f1b"), varied("slices", std::to_string(n))});
    return out;
  }
  for (const char* order : {"1f1b", "zb-h1"}) out.push_back({varied("schedule", order), varied("slices", "1")});
  for (const char* order : {"1f1b", "zb-h1", "terapipe", "seq1f1b", "slimpipe"})
    for (const std::int64_t n : slices) out.push_back({varied("schedule", order), varied("slices", std::to_string(n))});
  for (const char* order : {"1f1b", "terapipe", "slimpipe"})
    if (!slices.empty()) out.push_back({varied("schedule", order), varied("slices", std::string(kPlanned))});
  const Override head_shards = varied("head_shards", std::to_string(actors));
  if (config.model.numbers.contains("head_shards"))
    for (const std::int64_t n : slices) out.push_back({varied("schedule", "slimpipe"), varied("slices", std::to_string(n)), head_shards});
  const auto layers = config.model.numbers.find("layers");
  if (layers == config.model.numbers.end() || static_cast<std::int64_t>(layers->second) % actors != 0) return out;
  const Override chunks = varied("chunks", std::to_string(static_cast<std::int64_t>(layers->second) / actors));  // layers of an actor
  const bool whole_rounds = config.pipeline.table.microbatches % actors == 0;
  if (whole_rounds) out.push_back({varied("schedule", "helixpipe"), varied("slices", "1"), chunks});
  if (whole_rounds && config.model.numbers.contains("qkv_in_attention")) {
    out.push_back(out.back());
    out.back().push_back(varied("qkv_in_attention", "1"));
  }
  for (const std::int64_t n : slices) out.push_back({varied("schedule", "slimpipe-exchange"), varied("slices", std::to_string(n)), chunks});
  return out;
}

// The setting that says which device of the cluster each of the program's is. A configuration does not know it: a run numbers devices by
// the rows of its table.
constexpr std::string_view kClusterDevices = "cluster_devices";

// The text that settings have of the cluster's devices, "[0,2,1,3]", and all other settings.
struct Placement {
  std::vector<int> devices;  // none: all of the cluster, in its order
  Settings others;
};
Placement placement_of(const Settings& settings) {
  Placement out;
  for (const Override& one : settings) {
    if (one.key != kClusterDevices) {
      out.others.push_back(one);
      continue;
    }
    out.devices.clear();
    const bool is_list = one.value.size() > 2 && one.value.front() == '[' && one.value.back() == ']';
    for (const std::string& number : split(is_list ? one.value.substr(1, one.value.size() - 2) : one.value, ',')) {
      const std::optional<int> device = parse_number<int>(number);
      if (!device || *device < 0 || std::ranges::count(out.devices, *device) > 0)
        throw Error(concat(kClusterDevices, " is ", one.value, ", and ", quote(number), " is no device, or named twice"), {},
                    "name another device of the cluster for each of the program: [0,2,1,3]");
      out.devices.push_back(*device);
    }
  }
  return out;
}

ConfigVariant variant_of(const Settings& settings, const VariantPlanning& planning) {
  ConfigVariant out{.settings = settings};
  try {
    const Placement placement = placement_of(settings);
    out.config = planning.load(placement.others);
    const Prepared prepared = prepare(out.config, *planning.models);
    Program program = compile_training(out.config, prepared);
    out.cluster_devices = placement.devices;
    for (std::size_t d = out.cluster_devices.size(); placement.devices.empty() && d < program.devices.size(); ++d)
      out.cluster_devices.push_back(static_cast<int>(d));
    if (out.cluster_devices.size() != program.devices.size())
      throw Error(concat(kClusterDevices, " names ", counted(std::ssize(out.cluster_devices), "device"), ", and the program has ",
                         program.devices.size()));
    out.prediction = planning.predict(out, prepared, program);
    for (double* time : {&out.prediction.seconds, &out.prediction.lower_bound}) *time /= prepared.schedule.steps;
    out.prediction.timeline.slices = prepared.schedule.slices;  // a program does not know which of its stages are slices
    out.prediction.timeline.blocks = prepared.schedule.blocks;
  } catch (const Error& error) {
    out.refused = split(error.what(), '\n')[0];
  }
  for (std::size_t d = 0; d < out.prediction.memory.size(); ++d) out.devices.push_back(planning.memory(out.cluster_devices[d]));
  return out;
}

// Configurations that fit come first, the fastest first, and refused ones last.
std::tuple<bool, bool, double> order_of(const ConfigVariant& v) {
  return {!v.refused.empty(), !v.fits(), v.prediction.seconds};
}

// Whether a variant is faster than another one, or lacks fewer bytes on its devices where the other does not fit.
bool is_better(const ConfigVariant& a, const ConfigVariant& b) {
  const auto lacking = [](const ConfigVariant& v) {
    double bytes = 0;
    for (std::size_t d = 0; d < v.devices.size() && !v.fits(); ++d)
      bytes += std::max(0.0, static_cast<double>(v.prediction.memory[d]) - v.devices[d]);
    return std::pair(!v.refused.empty(), bytes);
  };
  if (lacking(a) != lacking(b)) return lacking(a) < lacking(b);
  return a.prediction.seconds < b.prediction.seconds * (1 - 1e-9);  // sums of the same times may differ in their last bits
}

// Goes from a choice to a better one next to it, as long as there is one, and returns the variant of the last. `settings_at`: of a choice.
template <class Choice, class SettingsAt, class Neighbours>
ConfigVariant descended(Choice choice, const SettingsAt& settings_at, const Neighbours& next_to, VariantPlanning& planning) {
  ConfigVariant best = variant_of(settings_at(choice), planning);
  std::set<std::string> known = {text(best.settings)};
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (const Choice& next : next_to(choice)) {
      const Settings settings = settings_at(next);
      if (!known.insert(text(settings)).second) continue;
      if (planning.limit.is_over()) return best;
      ConfigVariant variant = variant_of(settings, planning);
      if (!is_better(variant, best)) continue;
      best = std::move(variant);
      choice = next;
      is_new = true;
      break;
    }
  }
  return best;
}

bool asks_for_plan(const Override& one) {
  return (one.key == "slices" || one.key == "pipeline.slices") && one.value == kPlanned;
}

// The settings with this value in the place of planned slices.
Settings with_slices(Settings settings, const std::string& value) {
  for (Override& one : settings)
    if (asks_for_plan(one)) one.value = value;
  return settings;
}

// Writes lengths as a value of the key slices: equal ones are a number, since one length would be.
std::string value_of(const SliceLengths& lengths) {
  if (std::ranges::adjacent_find(lengths, std::ranges::not_equal_to()) == lengths.end()) return std::to_string(lengths.size());
  return concat("[", join(lengths, ",", [](std::int64_t n) { return std::to_string(n); }), "]");
}

// The lengths of a configuration's slices, in tokens.
std::vector<double> lengths_of(const Config& config) {
  const std::vector<double>& slices = config.pipeline.slices;
  if (slices.size() > 1) return slices;
  const int n = slices_of(config);
  return std::vector<double>(static_cast<std::size_t>(n), static_cast<double>(context_of(config)) / n);
}

PipelineSlicing slicing_of(const Config& config, std::int64_t unit) {
  PipelineSlicing out{.actors = config.pipeline.table.actors, .microbatches = config.pipeline.table.microbatches};
  out.length = context_of(config);
  out.unit = unit > 0 ? unit : slice_unit(out.length);
  check_unit(out);
  return out;
}

// Returns the fastest of the settings' two slices, `best`, and of other ones: at first sixteen, then what is planned by all before.
ConfigVariant best_slices(const Settings& settings, ConfigVariant best, VariantPlanning& planning) {
  constexpr int kMostPlans = 3;
  const PipelineSlicing slicing = slicing_of(best.config, planning.slice_unit);
  SliceTimes times;
  add_slice_times(times, best.prediction.timeline, lengths_of(best.config), slicing.microbatches);
  std::vector<std::string> next = {std::to_string(std::min<std::int64_t>(slicing.length / slicing.unit, 16))};
  std::set<std::string> known = {"2", next[0]};
  for (int plans = 0; !next.empty(); ++plans) {
    for (const std::string& value : next) {
      if (planning.limit.is_over()) return best;
      if (planning.progress) planning.progress(concat("  slices=", value));
      ConfigVariant variant = variant_of(with_slices(settings, value), planning);
      if (variant.refused.empty()) add_slice_times(times, variant.prediction.timeline, lengths_of(variant.config), slicing.microbatches);
      if (order_of(variant) < order_of(best)) best = std::move(variant);
    }
    next.clear();
    if (plans == kMostPlans) break;
    for (const SliceLengths& lengths : plan_slices(slicing, fit_slices(times)))
      if (const std::string value = value_of(lengths); known.insert(value).second) next.push_back(value);
  }
  return best;
}

// The variant of settings that ask for planned slices. Throws Error where there is none.
ConfigVariant planned_variant(const Settings& settings, VariantPlanning& planning) {
  ConfigVariant two = variant_of(with_slices(settings, "2"), planning);
  if (!two.refused.empty()) throw Error(two.refused);
  return best_slices(settings, std::move(two), planning);
}

bool asks_for_cut(const Override& one) {
  return (one.key == "stage_layers" || one.key == "model.stage_layers") && one.value == kPlanned;
}
bool asks_for_shares(const Override& one) {
  return (one.key == "frozen" || one.key == "pipeline.frozen") && one.value == kPlanned;
}

bool asks_for_filling(const Override& one) {
  return asks_for_cut(one) || asks_for_shares(one);
}
Settings without_filling(Settings settings) {
  std::erase_if(settings, asks_for_filling);
  return settings;
}

// The settings with what is planned for this cut of the trained layers.
Settings with_filling(Settings settings, const FillingTimes& times, const StageLayers& cut) {
  for (Override& one : settings) {
    if (asks_for_cut(one)) one.value = join(cut, "+", [](int layers) { return std::to_string(layers); });
    if (asks_for_shares(one))
      one.value = concat("[", join(frozen_shares(times, cut), ",", [](double share) { return short_decimal(share, 4); }), "]");
  }
  return settings;
}

// The timeline of a predicted step on one actor that has so many stages, in which each takes its time by itself.
Timeline step_apart(Settings plain, int stages, VariantPlanning& planning) {
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"schedule", "sequential"}, {"actors", "1"}, {"window", "1"}, {"chunks", std::to_string(stages)}})
    plain.push_back(varied(key, value));
  ConfigVariant variant = variant_of(plain, planning);
  if (!variant.refused.empty()) throw Error(variant.refused);
  return std::move(variant.prediction.timeline);
}

FillingTimes filling_times(const Settings& settings, VariantPlanning& planning) {
  Settings plain = without_filling(settings);
  const FillingSizes sizes = filling_sizes(planning.load(plain));
  plain.push_back(varied("pipeline.frozen", "[]"));
  plain.push_back(varied("stage_layers", "even"));
  return stage_times(step_apart(plain, sizes.frozen + sizes.layers, planning), sizes);
}

// The settings' variant with the fastest cut: DiffusionPipe's by the layers' times and, as this knows of no idle time that frozen stages
// fill, whatever a layer in another stage makes faster. Throws Error where there is none.
ConfigVariant filled_variant(const Settings& settings, VariantPlanning& planning) {
  const FillingTimes times = filling_times(settings, planning);
  const Config config = planning.load(without_filling(settings));
  const int stages = config.pipeline.table.actors * config.pipeline.table.chunks;
  const auto settings_at = [&](const StageLayers& cut) { return with_filling(settings, times, cut); };
  if (std::ranges::none_of(settings, asks_for_cut)) return variant_of(settings_at(even_cut(times, stages)), planning);
  const auto next_to = [](const StageLayers& cut) { return neighbours(cut); };
  return descended(best_cut(times, stages, config.pipeline.table.microbatches), settings_at, next_to, planning);
}

bool asks_for_workers(const Override& one) {
  return one.key == "pipeline.workers" && one.value == kPlanned;
}

// The settings with what these workers are. Devices are numbered by their stage, then by their worker.
Settings with_workers(Settings settings, const VirtualWorkers& workers) {
  const auto list = [](const std::vector<int>& numbers) {
    return concat("[", join(numbers, ",", [](int n) { return std::to_string(n); }), "]");
  };
  std::erase_if(settings, asks_for_workers);
  std::vector<int> devices;
  for (std::size_t stage = 0; stage < workers.devices[0].size(); ++stage)
    for (const std::vector<int>& own : workers.devices) devices.push_back(own[stage]);
  settings.push_back(varied("pipeline.workers", concat("[", join(workers.layers, ",", list), "]")));
  settings.push_back(varied(std::string(kClusterDevices), list(devices)));
  settings.push_back(varied("in_flight", std::to_string(workers.in_flight)));
  if (workers.devices.size() > 1) settings.push_back(varied("pipeline.distance", std::to_string(workers.distance)));
  return settings;
}

// Seconds of each layer's forward and backward of a micro-batch, as a worker has it.
std::vector<double> layer_times(Settings plain, VariantPlanning& planning) {
  std::erase_if(plain, asks_for_workers);
  const Config config = planning.load(plain);
  const int microbatches = config.pipeline.table.microbatches * config.pipeline.data;
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"pipeline.data", "1"}, {"microbatches", std::to_string(microbatches)}, {"pipeline.workers", "[]"}, {"pipeline.distance", "-1"}})
    plain.push_back(varied(key, value));
  std::vector<double> out(static_cast<std::size_t>(config.model.numbers.at("layers")));
  for (const Activity& activity : step_apart(plain, static_cast<int>(out.size()), planning).activities)
    if (activity.action && activity.lane == Lane::compute)
      out[static_cast<std::size_t>(activity.stage)] += (activity.end - activity.begin) / microbatches;
  return out;
}

// The settings' variant with the fastest workers that are found. Throws Error where there are none.
ConfigVariant workers_variant(const Settings& settings, VariantPlanning& planning) {
  const std::vector<double> layers = layer_times(settings, planning);
  Settings plain = settings;
  std::erase_if(plain, asks_for_workers);
  ConfigVariant best{.settings = settings, .refused = "no time is left"};
  const auto settings_at = [&](const VirtualWorkers& workers) { return with_workers(settings, workers); };
  const auto next_to = [&](const VirtualWorkers& workers) { return neighbours(workers, layers, planning.cluster); };
  for (const VirtualWorkers& first : first_workers(layers, planning.cluster, planning.load(plain).pipeline.data)) {
    ConfigVariant variant = descended(first, settings_at, next_to, planning);
    if (is_better(variant, best)) best = std::move(variant);
  }
  return best;
}

// The variant of settings, of which some may ask for a plan.
ConfigVariant settled_variant(const Settings& settings, VariantPlanning& planning) {
  try {
    if (std::ranges::any_of(settings, asks_for_plan)) return planned_variant(settings, planning);
    if (std::ranges::any_of(settings, asks_for_filling)) return filled_variant(settings, planning);
    if (std::ranges::any_of(settings, asks_for_workers)) return workers_variant(settings, planning);
    return variant_of(settings, planning);
  } catch (const Error& error) {
    return {.settings = settings, .refused = split(error.what(), '\n')[0]};
  }
}

// All are refused. A reason that all share is said with its own details and hint: most likely a key is mistyped.
[[noreturn]] void fail_refused(const std::vector<ConfigVariant>& variants, const VariantPlanning& planning) {
  const auto alike = [&](const ConfigVariant& variant) { return variant.refused == variants[0].refused; };
  const auto is_planned = [](const Override& one) { return asks_for_filling(one) || asks_for_workers(one) || one.key == kClusterDevices; };
  if (std::ranges::all_of(variants, alike) && std::ranges::none_of(variants[0].settings, is_planned))
    prepare(planning.load(with_slices(variants[0].settings, "2")), *planning.models);
  std::vector<std::string> reasons;
  for (const ConfigVariant& variant : variants) reasons.push_back(concat(text(variant.settings), ": ", variant.refused));
  throw Error("none of the configurations can be run", reasons, "vary other keys, or other values");
}

[[noreturn]] void fail_large(const std::vector<ConfigVariant>& variants) {
  const auto smallest = std::ranges::min_element(
      variants, {}, [](const ConfigVariant& v) { return v.refused.empty() ? v.largest() : std::numeric_limits<double>::infinity(); });
  throw Error("no configuration fits its devices' memory",
              {concat("the smallest, ", text(smallest->settings), ", plans ", bytes_text(smallest->largest()), " on its fullest device")},
              "vary more keys: recompute=inputs, slices, pipeline.context; or give more --memory");
}

// A variant made ready to run.
struct Runner {
  Workbench bench;
  std::unique_ptr<Cluster> cluster;
  std::uint64_t program = 0;
  std::int64_t steps = 1, runs = 0;  // steps of training in a run
};

std::shared_ptr<Runner> runner_of(const ConfigVariant& variant, const ModelRegistry& models,
                                  const std::function<Workbench(const Config&)>& bench_of) {
  const Prepared prepared = prepare(variant.config, models);
  Program program = compile_training(variant.config, prepared);
  const auto runner = std::make_shared<Runner>(Runner{.bench = bench_of(variant.config), .cluster = {}});
  runner->bench.choose_kernels(program);
  runner->cluster = runner->bench.threads(static_cast<int>(program.devices.size()));
  runner->program = runner->cluster->load(program);
  runner->steps = prepared.schedule.steps;
  runner->cluster->set_state(fresh_start(variant.config, prepared).state);
  return runner;
}

Network network_of(const ClusterSpec& cluster, int devices) {
  Network out;
  for (int from = 0; from < devices; ++from)
    for (int to = 0; to < devices; ++to)
      if (from != to) out.between[{from, to}] = link_of(cluster.link(from, to));
  return out;
}

}  // namespace

Varied parse_varied(std::string_view text) {
  const std::size_t equals = text.find('=');
  Varied out{std::string(text.substr(0, equals)), {}};
  const std::string_view values = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  int depth = 0;  // of brackets
  out.values.emplace_back();
  for (const char c : values) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0)
      out.values.emplace_back();
    else
      out.values.back() += c;
  }
  if (out.key.empty() || std::ranges::any_of(out.values, &std::string::empty))
    throw Error(concat("--vary ", text, ": not a key with values"), {}, "--vary slices=1,4,8");
  return out;
}

std::vector<Settings> combinations(const std::vector<Varied>& varied) {
  std::vector<Settings> out = {{}};
  for (const Varied& one : varied) {
    if (out.size() * one.values.size() > kMostVariants)
      throw Error(concat("--vary gives ", out.size() * one.values.size(), " combinations and more"), {},
                  concat("at most ", kMostVariants, ": name fewer values"));
    std::vector<Settings> next;
    for (const Settings& settings : out)
      for (const std::string& value : one.values) {
        next.push_back(settings);
        next.back().push_back({one.key, value, "--vary " + one.key});
      }
    out = std::move(next);
  }
  return out;
}

std::vector<Settings> sequence_settings(const Config& config, int devices) {
  std::vector<Settings> out;
  for (int context = 1; context <= devices; context *= 2) {
    if (devices % context != 0) continue;
    for (const Settings& order : orders_on(config, devices / context))
      for (const char* kept : {"none", "inputs"}) {
        out.push_back({varied("actors", std::to_string(devices / context)), varied("pipeline.context", std::to_string(context))});
        out.back().insert(out.back().end(), order.begin(), order.end());
        out.back().push_back(varied("recompute", kept));
      }
  }
  return out;
}

std::vector<Settings> filling_settings(const Config& config, int devices) {
  if (config.pipeline.table.window == 1)
    throw Error("pipeline.window is 1: frozen stages of a step fill the one before it, and none is in the table", {},
                "--set pipeline.window=8 --set clip=0");
  const FillingSizes sizes = filling_sizes(config);
  const auto text_layers = config.model.numbers.find("text_layers");
  const int most = text_layers == config.model.numbers.end() ? sizes.frozen : static_cast<int>(text_layers->second) + 1;
  std::vector<Settings> out;
  for (int actors = 1; actors <= std::min(devices, sizes.layers); ++actors)
    for (int frozen = 1; frozen <= most; ++frozen)
      out.push_back({varied("actors", std::to_string(actors)), varied("frozen_stages", std::to_string(frozen)),
                     varied("stage_layers", std::string(kPlanned)), varied("frozen", std::string(kPlanned))});
  return out;
}

std::vector<Settings> worker_settings(const Config& config, int devices) {
  if (config.pipeline.table.window == 1)
    throw Error("pipeline.window is 1: workers are never drained between steps, and one step is drained", {}, "--set pipeline.window=8");
  const auto layers = config.model.numbers.find("layers");
  if (layers == config.model.numbers.end())
    throw Error(concat("model ", quote(config.model.name), " has no number of layers of which workers could have more or fewer"), {},
                "models that have: gpt, mlp, t5, moe");
  std::vector<Settings> out;
  for (int workers = 1; workers <= devices; ++workers)
    if (devices % workers == 0 && devices / workers <= layers->second)
      out.push_back({varied("actors", std::to_string(devices / workers)), varied("pipeline.data", std::to_string(workers)),
                     varied("schedule", "hetpipe"), varied("pipeline.workers", std::string(kPlanned))});
  return out;
}

bool recomputes_needlessly(const Settings& settings, const ConfigVariant& before) {
  // Planned slices have lengths by now, and what is the same in all else is the same choice.
  const auto all_else = [](Settings of) {
    std::erase_if(of, [](const Override& one) { return one.key == "slices"; });
    return of;
  };
  Settings recomputed = all_else(before.settings);
  if (recomputed.empty() || recomputed.back().key != "recompute" || recomputed.back().value == "inputs") return false;
  recomputed.back().value = "inputs";
  return before.fits() && text(all_else(settings)) == text(recomputed);
}

bool ConfigVariant::fits() const {
  for (std::size_t d = 0; d < devices.size(); ++d)
    if (!penstock::fits(static_cast<double>(prediction.memory[d]), devices[d])) return false;
  return refused.empty();
}

double ConfigVariant::largest() const {
  return prediction.memory.empty() ? 0 : static_cast<double>(std::ranges::max(prediction.memory));
}

const std::vector<VariantPlanner>& variant_planners() {
  static const std::vector<VariantPlanner> all = {
      {"sequences", "orders of sequences whole and in slices, with context parallelism and recomputation, each compiled and predicted",
       sequence_settings, recomputes_needlessly, /*takes_only=*/true},
      {"diffusionpipe", "the cut of a trained backbone, and frozen stages in the idle time of the step before (DiffusionPipe, 2405.01248)",
       filling_settings},
      {"hetpipe-waves", "virtual workers of unequal devices, their layers, waves and lateness (HetPipe, 2005.14038)", worker_settings},
  };
  return all;
}

const VariantPlanner* find_variant_planner(std::string_view name) {
  const auto found = std::ranges::find(variant_planners(), name, &VariantPlanner::name);
  return found == variant_planners().end() ? nullptr : &*found;
}

PlannedVariants plan_variants(const std::vector<Settings>& settings, VariantPlanning planning) {
  PlannedVariants out{.considered = settings.size()};
  for (const Settings& one : settings) {
    if (planning.limit.is_over()) break;
    if (planning.is_needless && !out.variants.empty() && planning.is_needless(one, out.variants.back())) continue;
    if (planning.progress) planning.progress(concat(out.variants.size() + 1, " of ", settings.size(), ": ", text(one)));
    out.variants.push_back(settled_variant(one, planning));
    out.variants.back().prediction.timeline = {};  // there may be thousands
  }
  std::ranges::stable_sort(out.variants, {}, order_of);
  if (out.variants.empty()) throw Error("no configuration was predicted in time", {}, "give more --seconds");
  if (!out.variants[0].refused.empty()) fail_refused(out.variants, planning);
  if (!out.variants[0].fits()) fail_large(out.variants);
  return out;
}

ClusterSpec placed(const ClusterSpec& cluster, const std::vector<int>& devices) {
  ClusterSpec out{.name = cluster.name, .published = cluster.published, .devices = {}, .levels = {}, .between = {}};
  const int count = static_cast<int>(devices.size());
  for (int b = 0; b < count; ++b) {
    const int device = devices[at(b)];
    if (device < 0 || device >= std::ssize(cluster.devices))
      throw Error(concat("device ", device, " of the program's is none of cluster ", cluster.name),
                  {concat("it has ", counted(std::ssize(cluster.devices), "device"), ", from 0")});
    out.devices.push_back(cluster.devices[at(device)]);
    for (int a = 0; a < b; ++a) out.between[{a, b}] = cluster.link(devices[at(a)], device);
  }
  return out;
}

Prediction predict_on(const Program& program, const ClusterSpec& cluster, const std::string& device) {
  if (program.devices.size() > cluster.devices.size())
    throw Error(concat("the program has ", program.devices.size(), " devices, the cluster ", cluster.devices.size()));
  CostContext context;
  context.roofline = published_devices().device(device);
  Network network = network_of(cluster, static_cast<int>(program.devices.size()));
  network.host = host_link({}, context);
  std::vector<double> speeds;
  for (std::size_t d = 0; d < program.devices.size(); ++d) speeds.push_back(cluster.devices[d].speed);
  return prediction_of(program, {}, context, network, speeds);
}

Prediction predict_here(const Workbench& bench, const Prepared& prepared, Program& program, int rounds) {
  bench.choose_kernels(program);
  ProfileOptions options = profile_options(bench.config, rounds);
  options.input = [&](std::int64_t number, const Program&) { return bench.input(number, prepared.schedule.steps); };
  const std::unique_ptr<Cluster> cluster = bench.threads(static_cast<int>(program.devices.size()));
  const Costs costs = measure_costs(*cluster, nullptr, {program}, fresh_start(bench.config, prepared).state, options);
  return predict(program, costs);
}

void race_variants(std::vector<ConfigVariant>& variants, const ModelRegistry& models, int candidates, const RaceOptions& options,
                   const std::function<Workbench(const Config&)>& bench_of) {
  std::vector<TimedStep> steps;
  for (const ConfigVariant& variant : variants) {
    if (!variant.fits() || std::ssize(steps) == candidates) break;
    steps.push_back([runner = runner_of(variant, models, bench_of)] {
      const StepInput input = runner->bench.input(++runner->runs, runner->steps);
      return runner->cluster->step(runner->program, input).seconds / static_cast<double>(runner->steps);
    });
  }
  const std::vector<Sample> samples = race(steps, options);
  for (std::size_t i = 0; i < samples.size(); ++i) variants[i].measured = samples[i];
  std::stable_sort(variants.begin(), variants.begin() + std::ssize(samples),
                   [](const ConfigVariant& a, const ConfigVariant& b) { return is_ahead(a.measured, b.measured); });
}

std::string text(const Settings& settings) {
  return join(settings, " ", [](const Override& one) { return concat(one.key, "=", one.value); });
}

}  // namespace penstock
