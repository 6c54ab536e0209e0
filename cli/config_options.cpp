// SPDX-License-Identifier: Apache-2.0
#include "cli/config_options.h"

#include <filesystem>
#include <optional>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/shared_options.h"
#include "config/config_keys.h"
#include "config/learning_rate.h"
#include "penstock/error.h"
#include "state/weight_files.h"

namespace penstock {
namespace {

// A flag that sets a key of the configuration, whose default is said with the meaning unless that says one itself.
struct Flag {
  const char* name;
  const char* key;
  const char* value;  // what it takes; "": it is a switch and means true
  const char* help;
};

struct FlagGroup {
  const char* title;
  std::vector<Flag> flags;
};

const std::vector<FlagGroup>& flag_groups() {
  static const std::vector<FlagGroup> groups = {
      {groups::kSchedule,
       {{"--plan", "pipeline.plan", "FILE", "What penstock plan wrote: stages, actors, micro-batches and schedule"},
        {"--schedule", "pipeline.schedule", "SCHEDULE", "A name (penstock schedule list), FILE.csv or FILE.rules"},
        {"--actors", "pipeline.actors", "N", "Actors that share the stages [2, or as the table says]"},
        {"--microbatches", "pipeline.microbatches", "N", "Micro-batches of a step [8, or as the table says]"},
        {"--chunks", "pipeline.chunks", "N", "Stages of each actor"},
        {"--slices", "pipeline.slices", "N", "Slices of each sequence, or the length of each in tokens [1]"},
        {"--window", "pipeline.window", "N", "Training steps that the table is for"},
        {"--in-flight", "pipeline.in_flight", "N", "Micro-batches that an actor holds at most [as the schedule chooses]"},
        {"--group", "pipeline.group", "N",
         "Micro-batches that go through a chunk, or forward and back, together [as the schedule chooses]"},
        {"--unit", "pipeline.unit", "N", "Micro-batches for which parameters are gathered once [all]"},
        {"--transfers", "pipeline.transfers", "X,...",
         "Time of a transfer over that of a stage's forward, which the order allows for: of every link, 0.5, or of each, 0,0,2 [0]"},
        {"--frozen", "pipeline.frozen", "X,...",
         "Stages in front that are not trained: time of a forward of each over that of a stage that is, 1,0.5 [none]"},
        {"--split-backward", "pipeline.split_backward", "", "Each B as I and then W, fused pairs apart"},
        {"--recompute", "pipeline.recompute", "none|selective|inputs",
         "What backward computes again: nothing, results that cost little for their bytes, or all but what enters each stage"}}},
      {groups::kModel,
       {{"--steps", "train.steps", "N", "Training steps of the whole run"},
        {"--batch", "train.batch", "N", "Sequences of a step, over all micro-batches"},
        {"--lr", "train.learning_rate", "X", "Learning rate after the warm-up; train.decay says how it falls"},
        {"--dtype", "train.dtype", "f32|f64|bf16", "Number type of the computation"},
        {"--seed", "train.seed", "N", "Seed of parameters, data order and dropout"}}},
      {groups::kWhere,
       {{"--device", "run.device", "cpu|cuda|standin",
         "Where stages compute; cuda:1 is one card, and standin, built with the tests, behaves as a GPU does"},
        {"--backend", "pipeline.backend", "threads|gloo|nccl", "What sends: threads of one process, or gloo or nccl between processes"},
        {"--straggler", "run.straggler", "ACTOR[.DEVICE]=FACTOR,...", "What is held back: 1=2, actor 1 at half its speed [nothing]"}}},
      {groups::kOutput, {{"--out", "run.out", "DIR", "Folder of the run"}}},
  };
  return groups;
}

// The key's default as text for people; "" where it has none to tell.
std::string default_of(const std::string& key) {
  Config config;
  for (const ConfigKey& each : fixed_keys(config)) {
    if (each.path() != key) continue;
    std::string text = value_text(each);
    std::erase(text, '"');
    return text == "[]" ? "" : text;
  }
  return "";
}

// The folder of the run to which a checkpoint belongs.
std::string run_folder(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  const auto parent = [](const fs::path& path) { return (path.has_filename() ? path : path.parent_path()).parent_path(); };
  const fs::path named = parent(fs::path(checkpoint).lexically_normal());
  return named.empty() ? parent(fs::absolute(checkpoint).lexically_normal()).string() : named.string();
}

void add_flag(CLI::App& command, ConfigOptions& options, const Flag& flag) {
  const std::string name = flag.name, value = flag.value;
  if (value.empty()) {
    command.add_flag_callback(name, [&options, name] { options.flags[name] = "true"; }, flag.help);
    return;
  }
  CLI::Option* option = command.add_option_function<std::string>(
      name, [&options, name](const std::string& given) { options.flags[name] = given; }, flag.help);
  option->type_name(value)->default_str(default_of(flag.key));
}

}  // namespace

CLI::Option* add_mesh_option(CLI::App& command, std::string& mesh) {
  return command
      .add_option(
          "--mesh", mesh,
          "devices by axes. pipe=P,data=D: P actors of D devices each, which share every micro-batch; local=L: of D hosts of L each; "
          "tensor=T, context=C, expert=E: of as many devices for each of these, among which [layout] splits tensors [pipe=2]")
      ->type_name("AXES");
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  begin_group(command, groups::kWhat);
  command.add_option("CONFIG", options.file, "TOML file; every key has a default (penstock config)");
  add_set_option(command, options.settings);
  command.add_option("--text", options.text, "Files and folders to read [the project's own sources]")->type_name("PATH")->expected(1, -1);
  command.add_option("--resume", options.resume, "Go on from a run's newest checkpoint, or from the one named")->type_name("DIR");
  command
      .add_option(
          "--init", options.init,
          "Start from parameters: of a run or checkpoint, or of a file or folder that save_pretrained wrote, of names as the model has")
      ->type_name("DIR|FILE.safetensors");
  for (const FlagGroup& group : flag_groups()) {
    begin_group(command, group.title);
    for (const Flag& flag : group.flags) add_flag(command, options, flag);
    if (group.title == groups::kWhere) add_mesh_option(command, options.mesh);
  }
  add_log_options(command, options.log);
}

Checkpoint find_intact(const std::string& path, const Log& log) {
  FoundCheckpoint found = find_checkpoint(path);
  for (const DamagedCheckpoint& damaged : found.damaged)
    log.say(concat("note: ", damaged.folder, " is damaged (", damaged.damage, "); ", found.checkpoint.folder, " is the newest intact one"));
  return std::move(found.checkpoint);
}

TrainingStart start_of(const ConfigOptions& options, const Config& config, const Prepared& prepared, const ModelRegistry& models) {
  if (!options.resume.empty()) return start_from_checkpoint(config, options.resume, models);
  if (options.init.empty()) return fresh_start(config, prepared);
  std::error_code ignored;
  const bool is_run = std::filesystem::is_directory(options.init, ignored) && !is_pretrained(options.init);
  return start_from_parameters(config, prepared, is_run ? find_intact(options.init, options.log).folder : options.init, models);
}

namespace {

// Throws Error for what is meant as something else than a configuration's file.
void check_is_config(const std::string& file, const ModelRegistry& models) {
  const auto fail = [&](const char* what, const std::string& flag) {
    throw Error(concat(file, " is ", what, ", not a configuration"), {}, flag);
  };
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored)) return;  // which reading it says
  if (file.ends_with(".csv") || file.ends_with(".rules")) fail("a schedule's table", concat("--schedule ", file));
  if (file.ends_with(".json")) fail("JSON", concat("a plan is taken by --plan ", file, "; a configuration is TOML (penstock config)"));
  if (file.empty() || std::filesystem::exists(file, ignored)) return;
  if (models.contains(file)) fail("a model's name", concat("--set model.name=", file));
  if (file.find('=') != std::string::npos) fail("no file", concat("a key is set by --set ", file));
}

}  // namespace

Config load_config(const ConfigOptions& options, const ModelRegistry& models) {
  check_is_config(options.file, models);
  std::optional<Checkpoint> checkpoint;
  if (!options.resume.empty()) checkpoint = find_intact(options.resume, options.log);
  const bool stored = checkpoint && options.file.empty();
  std::vector<Override> overrides;
  if (stored) overrides.push_back({"run.out", run_folder(checkpoint->folder), "--resume"});
  for (const std::string& setting : options.settings) overrides.push_back(parse_override(setting));
  for (const FlagGroup& group : flag_groups())
    for (const Flag& flag : group.flags)
      if (const auto given = options.flags.find(flag.name); given != options.flags.end())
        overrides.push_back({flag.key, given->second, flag.name});
  if (!options.mesh.empty()) overrides.push_back(mesh_override(options.mesh));
  const std::string manifest = checkpoint ? checkpoint->folder + "/manifest.json" : "";
  Config config =
      stored ? load_stored_config(checkpoint->config, manifest, overrides, models) : load_config(options.file, overrides, models);
  if (checkpoint)
    keep_learning_rate(config.train, parse_config(checkpoint->config, manifest, {}, models).train,
                       stored ? config.overridden : config.given);
  if (!options.text.empty()) config.data.text = options.text;
  return config;
}

void say_sizes(const Prepared& prepared, const Log& log) {
  if (!prepared.one_by_one.empty())
    log.say(concat("note: stages that take several micro-batches together run them one after the other: ", prepared.one_by_one));
}

}  // namespace penstock
