// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/papers.h"
#include "base/text.h"
#include "base/toml.h"
#include "base/words.h"
#include "batch/batch_planners.h"
#include "config/assignments.h"
#include "config/config_keys.h"
#include "config/mesh.h"
#include "config/other_words.h"
#include "config/planned_config.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "penstock/plan_file.h"
#include "penstock/schedule.h"
#include "rules/load_schedule.h"
#include "schedule/options.h"

namespace penstock {
namespace {

constexpr const char* kByPlan = "plan";  // pipeline.schedule where a plan says it

// The largest number up to `most` that divides `value`.
std::int64_t largest_divisor(std::int64_t value, std::int64_t most) {
  while (value % most != 0) --most;
  return most;
}

void choose_model(Config& config, const std::vector<Assignment>& assignments, const ModelRegistry& models) {
  std::string place;
  for (const Assignment& assignment : assignments) {
    if (assignment.section != "model" || assignment.name != "name") continue;
    const ConfigKey key = fixed_keys(config).front();  // the key model.name
    assign(key, assignment);
    place = assignment.value_place;
  }
  const auto entry = models.find(config.model.name);
  if (entry == models.end()) {
    std::vector<std::string> known;
    for (const auto& [name, ignored] : models) known.push_back(name);
    fail_unknown(place, "model", config.model.name, known);
  }
  config.model.numbers = entry->second.numbers;
  config.model.words = entry->second.words;
}

// Every name of a dim that the file or an override maps is a key of its own; whether the model has the dim is seen when there is a model.
void add_dims(Config& config, const std::vector<Assignment>& assignments, const std::vector<Override>& overrides) {
  constexpr std::string_view kLayout = "layout", kOfStage = "layout.";
  const auto add = [&](std::string_view section, const std::string& dim) {
    auto& dims = section == kLayout ? config.layout : config.stage_layout[std::string(section.substr(kOfStage.size()))];
    if (section != kLayout || dim != "choose") dims.try_emplace(dim);
  };
  for (const Assignment& assignment : assignments)
    if (assignment.section == kLayout || assignment.section.starts_with(kOfStage)) add(assignment.section, assignment.name);
  for (const Override& override : overrides)
    if (const std::size_t dot = override.key.rfind('.'); override.key.starts_with(kOfStage))
      add(override.key.substr(0, dot), override.key.substr(dot + 1));
}

// Every name of [axes] is a key of its own, too.
void add_axis_names(Config& config, const std::vector<Assignment>& assignments, const std::vector<Override>& overrides) {
  constexpr std::string_view kAxes = "axes.";
  for (const Assignment& assignment : assignments)
    if (assignment.section == "axes") config.axis_names[assignment.name];
  for (const Override& override : overrides)
    if (override.key.starts_with(kAxes)) config.axis_names[override.key.substr(kAxes.size())];
}

// Throws Error for two names of one axis, and for a name that is another axis. What names axes by default has the new names then.
void take_axis_names(Config& config) {
  std::map<std::string, std::string> by_axis;
  for (const auto& [name, axis] : config.axis_names) {
    const auto [other, is_new] = by_axis.emplace(axis, name);
    if (!is_new)
      throw Error(concat("axes.", other->second, " and axes.", name, " are both ", quote(axis)),
                  {concat("there is one axis ", axis, ", as a dim that is split over it lies along one axis")},
                  axis == "data"
                      ? "let one of them be local, along which with zero = 3 devices have the same parameters"
                      : "name another of tensor, context and expert, which differ in nothing but what [layout] splits over them");
    if (name != axis && !members_key(name).empty())
      throw Error(concat("axes.", name, " = ", quote(axis), ": ", name, " is the name of another axis"), {}, "take a name that is none");
    if (name.empty() || name.find_first_of(",=.") != std::string::npos)
      throw Error(concat("axes: ", quote(name), " cannot be told apart in --mesh"), {}, "take a name without comma, dot and =");
  }
  config.layout = usual_layout(config);
  for (std::string& axis : config.pipeline.axes) axis = axis_named(config, axis);
}

// The overrides with those that a mesh stands for, and keys of [mesh] as those of [pipeline] that they are.
std::vector<Override> with_mesh(const std::vector<Override>& overrides, const Config& config) {
  constexpr std::string_view kSection = "mesh.";
  std::vector<Override> out;
  for (const Override& override : overrides) {
    out.push_back(override);
    if (!override.key.starts_with(kSection)) continue;
    const std::string name = override.key.substr(kSection.size());
    out.back().key = members_key(axis_of(config, name));
    if (out.back().key.empty()) fail_unknown_axis(override.source, name, config.axis_names);
  }
  const auto mesh = std::ranges::find(out, "mesh", &Override::key);
  if (mesh == out.end()) return out;
  const std::vector<Override> axes = parse_mesh(mesh->value, config.axis_names);
  out.erase(mesh);
  out.insert(out.end(), axes.begin(), axes.end());
  return out;
}

// [mesh] says by the names of axes what [pipeline] says of their members.
void take_mesh_section(std::vector<Assignment>& assignments, const Config& config) {
  for (Assignment& of_mesh : assignments) {
    if (of_mesh.section != "mesh") continue;
    const std::string key = members_key(axis_of(config, of_mesh.name));
    if (key.empty()) fail_unknown_axis(concat(of_mesh.key_place, "[mesh]"), of_mesh.name, config.axis_names);
    of_mesh.section = "pipeline";
    of_mesh.name = key.substr(key.find('.') + 1);
    if (std::ranges::count_if(assignments, [&](const Assignment& a) { return a.section == "pipeline" && a.name == of_mesh.name; }) > 1)
      throw Error(concat(of_mesh.key_place, "[mesh] and ", key, " both say how many members an axis has"), {}, "leave one out");
  }
}

// Throws Error where one of the overrides says something else of an axis than the mesh, which would write over it.
void check_axes_said_once(const std::vector<Override>& mesh, const std::vector<Override>& overrides, const std::vector<ConfigKey>& keys) {
  for (const Override& axis : mesh)
    for (const Override& other : overrides)
      if (other.value != axis.value && full_key(other, keys) == axis.key)
        throw Error(concat(other.source, " is ", other.value, ", and ", axis.source, " ", axis.value),
                    {"--mesh says the members of all axes: those that it does not name have one"}, "say it in --mesh alone");
}

// Numbers that the model's words say, where they are not given.
void take_from_words(Config& config, const ModelRegistry& models) {
  const ModelEntry& entry = models.at(config.model.name);
  if (!entry.numbers_of) return;
  for (const auto& [name, value] : entry.numbers_of(config.model.words))
    if (!config.given.contains("model." + name)) config.model.numbers[name] = value;
}

// Along a chosen axis lies no dim by its name: not by default either, as the configuration of another run may say. Throws Error where a dim
// was mapped to it otherwise.
void leave_to_choice(Config& config) {
  const auto fail = [](const std::string& key, const std::string& axis) {
    throw Error(concat(key, " = ", quote(axis), " and layout.choose = ", quote(axis)),
                {"along an axis dims are split that the layout names, or those that Penstock finds"},
                concat("leave out ", key, ", or --set ", key, "="));
  };
  const std::map<std::string, std::string> usual = usual_layout(config);
  for (auto& [dim, axis] : config.layout) {
    if (!is_chosen(config, axis)) continue;
    const auto by_default = usual.find(dim);
    if (by_default == usual.end() || by_default->second != axis || config.overridden.contains("layout." + dim)) fail("layout." + dim, axis);
    axis = "";
  }
  for (const auto& [stage, dims] : config.stage_layout)
    for (const auto& [dim, axis] : dims)
      if (is_chosen(config, axis)) fail(concat("layout.", stage, ".", dim), axis);
}

// Whether a plan or a table has yet to say how many micro-batches there are.
bool awaits_table(const Config& config) {
  if (!config.pipeline.plan.empty()) return true;
  return names_table(config.pipeline.schedule) && !config.given.contains("pipeline.microbatches");
}

void check_batch(const Config& config) {
  const std::int64_t batch = config.train.batch, microbatches = config.pipeline.table.microbatches;
  const auto [data, local] = std::pair(config.pipeline.data, config.pipeline.program.local);
  if (const int devices = devices_of_actor(config); devices > 1 && batch % (microbatches * devices) != 0)
    throw Error(concat("train.batch = ", batch, " is not divisible by pipeline.microbatches = ", microbatches,
                       " times pipeline.data = ", data, local > 1 ? concat(" times pipeline.local = ", local) : ""),
                {"every device of an actor takes as many sequences of every micro-batch"});
  if (batch % microbatches != 0)
    throw Error(
        concat("train.batch = ", batch, " is not divisible by pipeline.microbatches = ", microbatches),
        {"every micro-batch has the same number of sequences"},
        concat("--microbatches ", largest_divisor(batch, microbatches), ", or --batch ", (batch / microbatches + 1) * microbatches));
  if (const int slices = slices_of(config); slices > 1 && plans_batches(config))
    throw Error(concat("pipeline.slices = ", slices, " cuts sequences of one length; batch.planner = ", quote(config.batch.planner),
                       " plans batches of several"),
                {}, "leave out pipeline.slices, or set batch.planner = \"pad\"");
}

void take_from_table(Config& config) {
  Config::Pipeline& pipeline = config.pipeline;
  const bool actors = !config.given.contains("pipeline.actors"), microbatches = awaits_table(config);
  if (!names_table(pipeline.schedule) || (!actors && !microbatches)) return;
  const Schedule table = parse_schedule(read_file(pipeline.schedule), pipeline.schedule);
  if (!config.given.contains("pipeline.slices")) pipeline.slices = {static_cast<double>(table.slices)};
  if (actors) pipeline.table.actors = static_cast<int>(table.actors.size());
  if (microbatches) pipeline.table.microbatches = std::max(table.step_microbatches(), 1);
  check_batch(config);
}

// The error for an override that contradicts a plan: the override's source and value, and the plan's.
[[noreturn]] void fail_against_plan(const Config& config, const Override& override, const std::string& planned) {
  const std::string& plan = config.pipeline.plan;
  throw Error(concat(override.source, " ", override.value, ": the plan ", plan, " says ", planned), {},
              concat("leave out ", override.source, "; or run without the plan: --plan \"\""));
}

}  // namespace

bool plans_batches(const Config& config) {
  return find_batch_planner(config.batch.planner).batches != BatchesOf::alike;
}

bool is_planned(const Config& config) {
  return config.pipeline.schedule == kByPlan;
}

void take_plan(Config& config, const PlanFile& plan) {
  Config::Pipeline& pipeline = config.pipeline;
  const Config::Pipeline defaults;
  pipeline.schedule = kByPlan;
  pipeline.table = {.actors = static_cast<int>(plan.schedule.actors.size()), .microbatches = plan.microbatches};
  pipeline.workers.clear();
  pipeline.slices = {1};
  if (shares_of(devices_of_actors(plan)) > 1) {
    pipeline.data = pipeline.program.local = 1;
    pipeline.program.local_outside = false;
  }
  if (plan.split != Split()) {
    pipeline.tensor = plan.split.tensor;
    pipeline.context = plan.split.context;
    pipeline.axes = defaults.axes;
    for (std::string& axis : pipeline.axes) axis = axis_named(config, axis);
    const std::string tensor = axis_named(config, "tensor");
    if (plan.split.sequence && !is_chosen(config, tensor)) config.layout["sequence"] = tensor;
  }
  if (plan.zero >= 0) pipeline.program.zero = plan.zero;
  check_batch(config);
  check_runnable(plan, config.train.batch);
}

void take_from_plan(Config& config, const std::vector<Override>& overrides) {
  Config::Pipeline& pipeline = config.pipeline;
  if (pipeline.plan.empty()) return;
  const PlanFile plan = parse_plan(read_file(pipeline.plan), pipeline.plan);
  const std::string actors = std::to_string(plan.schedule.actors.size()), microbatches = std::to_string(plan.microbatches);
  const std::vector<int> devices = devices_of_actors(plan);
  const bool grouped = shares_of(devices) > 1;
  for (const Override& override : overrides) {
    const auto is = [&](const std::string& name) { return override.key == name || override.key == "pipeline." + name; };
    if (is("actors") && override.value != actors) fail_against_plan(config, override, concat(actors, " actors"));
    if (is("microbatches") && override.value != microbatches) fail_against_plan(config, override, concat(microbatches, " micro-batches"));
    if (is("actors") || is("microbatches")) continue;
    if (grouped && (is("data") || is("local")))
      fail_against_plan(config, override,
                        concat("how many devices each actor has: ", join(devices, ", ", [](int n) { return std::to_string(n); })));
    const std::pair<const char*, int> split[] = {{"tensor", plan.split.tensor}, {"context", plan.split.context}};
    for (const auto& [axis, members] : split)
      if (plan.split != Split() && is(axis) && override.value != std::to_string(members))
        fail_against_plan(config, override, concat(axis, " = ", members));
    const auto shapes = [&](const ScheduleOption& option) {
      return option.configured == ScheduleOption::Configured::here && is(std::string(option.name));
    };
    if (is("schedule") || is("workers") || is("slices") || std::ranges::any_of(schedule_options(), shapes))
      fail_against_plan(config, override, "which action each actor runs when");
  }
  const auto is_zero = [](const Override& override) { return override.key == "zero" || override.key == "pipeline.zero"; };
  const int zero = pipeline.program.zero;
  take_plan(config, plan);
  if (std::ranges::any_of(overrides, is_zero)) pipeline.program.zero = zero;
}

int slices_of(const Config& config) {
  const std::vector<double>& slices = config.pipeline.slices;
  for (const double number_or_length : slices)
    if (number_or_length != std::floor(number_or_length))
      throw Error(concat("pipeline.slices has ", number(number_or_length)), {"it is how many slices there are, or the length of each"},
                  "give whole numbers: slices = 8, or slices = [5, 3, 2]");
  return slices.size() == 1 ? static_cast<int>(slices[0]) : std::max(1, static_cast<int>(slices.size()));
}

std::vector<std::int64_t> slice_lengths(const Config& config) {
  const std::vector<double>& slices = config.pipeline.slices;
  const bool equal = std::ranges::adjacent_find(slices, std::ranges::not_equal_to()) == slices.end();
  if (equal) return {};
  std::vector<std::int64_t> lengths(slices.begin(), slices.end());
  std::int64_t unit = 0;
  for (const std::int64_t length : lengths) unit = std::gcd(unit, length);
  for (std::int64_t& length : lengths) length /= unit;
  return lengths;
}

bool is_chosen(const Config& config, const std::string& axis) {
  return std::find(config.chosen_axes.begin(), config.chosen_axes.end(), axis) != config.chosen_axes.end();
}

int devices_of_actor(const Config& config) {
  return config.pipeline.data * config.pipeline.program.local;
}

int devices_with_members(const Config& config) {
  const Config::Pipeline& mesh = config.pipeline;
  return static_cast<int>(std::int64_t{devices_of_actor(config)} * mesh.expert * mesh.context * mesh.tensor);
}

Override parse_override(std::string_view text) {
  const std::size_t equal = text.find('=');
  if (equal == std::string_view::npos || equal == 0)
    throw Error(concat("--set needs key=value, this is ", quote(text)), {}, "--set train.steps=100; penstock config lists all keys");
  const std::string key(trim(text.substr(0, equal)));
  return {key, std::string(trim(text.substr(equal + 1))), "--set " + key};
}

Config parse_config(std::string_view toml, std::string_view file, const std::vector<Override>& given, const ModelRegistry& models) {
  const toml::table document = parse_toml(toml, file);
  std::vector<Assignment> assignments = assignments_of(document, file);
  Config config;
  // The model decides which keys there are, so its name is settled first; a later assignment wins.
  std::vector<toml::table> documents;
  constexpr std::size_t kOfMesh = 7;                // overrides that a mesh stands for, at most
  documents.reserve(kOfMesh * (given.size() + 1));  // reserved because assignments point into it
  const auto add = [&](const Override& override, const std::vector<ConfigKey>& keys) {
    const std::string path = full_key(override, keys);
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& k) { return k.path() == path; });
    documents.push_back(override_document(override, *key));
    const std::string place = override.source + ": ";
    assignments.push_back({key->section, key->name, documents.back().get("x"), place, place});
    config.overridden.insert(path);
  };
  const std::vector<ConfigKey> fixed = fixed_keys(config);
  for (const Override& override : given)
    if (override.key == "model.name" || override.key == "name") add(override, fixed);
  choose_model(config, assignments, models);
  // Names of axes are next, as other keys name axes by them.
  add_axis_names(config, assignments, given);
  const std::vector<ConfigKey> names = axis_name_keys(config);
  for (const Override& override : given)
    if (override.key.starts_with("axes.")) add(override, names);
  std::vector<Assignment> of_names;
  std::ranges::copy_if(assignments, std::back_inserter(of_names), [](const Assignment& a) { return a.section == "axes"; });
  assign_all(of_names, names, config.model.name);
  take_axis_names(config);
  take_mesh_section(assignments, config);
  const std::vector<Override> overrides = with_mesh(given, config);
  add_dims(config, assignments, overrides);

  const std::vector<ConfigKey> keys = all_keys(config);
  if (const auto mesh = std::ranges::find(given, "mesh", &Override::key); mesh != given.end())
    check_axes_said_once(parse_mesh(mesh->value, config.axis_names), overrides, keys);
  for (const Override& override : overrides)
    if (override.key != "model.name" && override.key != "name" && !override.key.starts_with("axes.")) add(override, keys);
  assign_all(assignments, keys, config.model.name);
  for (const Assignment& assignment : assignments) config.given.insert(concat(assignment.section, ".", assignment.name));
  take_from_words(config, models);
  leave_to_choice(config);
  if (!awaits_table(config)) check_batch(config);
  return config;
}

namespace {

// The name of the model whose own file this is; none: it is a configuration.
std::optional<std::string> model_of_file(const std::string& path, const ModelRegistry& models) {
  for (const auto& [name, entry] : models)
    if (std::ranges::any_of(entry.suffixes, [&](const std::string& suffix) { return path.ends_with(suffix); })) return name;
  return std::nullopt;
}

}  // namespace

bool names_config(const std::string& path, const ModelRegistry& models) {
  return path.ends_with(".toml") || model_of_file(path, models);
}

Config load_config(const std::string& path, const std::vector<Override>& overrides, const ModelRegistry& models) {
  if (const std::optional<std::string> model = model_of_file(path, models)) {
    std::vector<Override> all = {{"model.name", *model, path}, {"model.file", path, path}};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config("", all, models);
  }
  Config config = parse_config(path.empty() ? std::string() : read_file(path), path, overrides, models);
  take_from_plan(config, with_mesh(overrides, config));
  take_from_table(config);
  return config;
}

namespace {

// A stored configuration may be somebody else's. What it says is written, and not only read, lies in the folder of its run, if the command
// line does not say it anew: wherever links there lead.
void check_confined(const Config& config, const std::string& file) {
  namespace fs = std::filesystem;
  const std::string& kernels = config.run.kernels;
  if (kernels == "own" || config.overridden.contains("run.kernels")) return;
  std::error_code ignored;
  const fs::path run = fs::weakly_canonical(fs::absolute(file).parent_path().parent_path(), ignored);
  const fs::path path = fs::weakly_canonical(fs::absolute(kernels), ignored);
  if (!path.empty() && std::ranges::mismatch(run, path).in1 == run.end()) return;
  throw Error(concat(file, ": run.kernels is ", kernels, ", outside of the run's folder ", run.string()),
              {"a resumed run writes nowhere else unless it is told to"},
              concat("--set run.kernels=", kernels, " if it is to write there, else --set run.kernels=own"));
}

}  // namespace

Config load_stored_config(std::string_view toml, std::string_view file, const std::vector<Override>& overrides,
                          const ModelRegistry& models) {
  Config config = parse_config(toml, file, overrides, models);
  check_confined(config, std::string(file));
  take_from_plan(config, with_mesh(overrides, config));
  if (!config.overridden.contains("pipeline.schedule")) return config;
  for (const char* said_by_table : {"pipeline.actors", "pipeline.microbatches", "pipeline.slices"})
    if (!config.overridden.contains(said_by_table)) config.given.erase(said_by_table);
  take_from_table(config);
  return config;
}

Config with_absolute_paths(Config config) {
  const auto make_absolute = [](std::string& path) { path = std::filesystem::absolute(path).lexically_normal().string(); };
  for (std::vector<std::string>* paths : {&config.data.text, &config.data.documents, &config.data.pairs})
    for (std::string& path : *paths) make_absolute(path);
  if (const auto file = config.model.words.find("file"); file != config.model.words.end() && !file->second.empty())
    make_absolute(file->second);
  if (config.data.tokenizer != "bytes") make_absolute(config.data.tokenizer);
  if (!config.batch.costs.empty()) make_absolute(config.batch.costs);
  if (!config.pipeline.plan.empty()) make_absolute(config.pipeline.plan);
  if (names_table(config.pipeline.schedule)) make_absolute(config.pipeline.schedule);
  make_absolute(config.run.out);
  if (config.run.kernels != "own") make_absolute(config.run.kernels);
  return config;
}

std::string print(const Config& config) {
  Config copy = config;  // a copy because keys point into a configuration that they may change
  std::string out, section;
  for (const ConfigKey& key : all_keys(copy)) {
    if (key.section != section) {
      out += concat(section.empty() ? "" : "\n", "[", toml_section(key.section), "]\n");
      section = key.section;
    }
    out += concat(toml_name(key.name), " = ", value_text(key), "\n");
  }
  return out;
}

}  // namespace penstock
