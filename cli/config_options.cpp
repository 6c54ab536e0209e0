#include "cli/config_options.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/text.h"
#include "config/learning_rate.h"
#include "state/weight_files.h"

namespace penstock {
namespace {

struct Flag {
  const char* name;
  const char* key;
  const char* help;
  bool is_switch = false;  // without a value it means true
};

constexpr Flag kFlags[] = {
    {"--plan", "pipeline.plan", "FILE that penstock plan wrote: stages, actors, micro-batches and schedule"},
    {"--schedule", "pipeline.schedule", "NAME (penstock schedule list), FILE.csv or FILE.rules"},
    {"--actors", "pipeline.actors", "how many actors share the stages [2, or as the table says]"},
    {"--microbatches", "pipeline.microbatches", "parts of a batch [8, or as the table says]"},
    {"--chunks", "pipeline.chunks", "stages per actor"},
    {"--slices", "pipeline.slices", "slices of each sequence"},
    {"--window", "pipeline.window", "training steps that the table is for"},
    {"--in-flight", "pipeline.in_flight", "most micro-batches an actor holds [as the schedule chooses]"},
    {"--group", "pipeline.group", "micro-batches that go through a chunk, or forward and back, together"},
    {"--unit", "pipeline.unit", "micro-batches for which parameters are gathered once [all]"},
    {"--transfers", "pipeline.transfers",
     "time of a transfer over a stage's forward, that the order allows for: 0.5, or each link's: 0,0,2"},
    {"--frozen", "pipeline.frozen",
     "stages in front that are not trained: what a forward of each takes over that of a stage that is: 1,0.5"},
    {"--split-backward", "pipeline.split_backward", "each B as I and then W, fused pairs apart", true},
    {"--backend", "pipeline.backend", "threads; gloo or nccl: between processes"},
    {"--recompute", "pipeline.recompute",
     "none; selective: keep no result that costs little for its bytes; or inputs: only what enters each stage"},
    {"--steps", "train.steps", "training steps in all"},
    {"--batch", "train.batch", "sequences per step"},
    {"--lr", "train.learning_rate", "learning rate after the warm-up; train.decay says how it falls"},
    {"--dtype", "train.dtype", "f32, f64 or bf16"},
    {"--seed", "train.seed", "of parameters, data order and dropout"},
    {"--out", "run.out", "folder of the run"},
    {"--device", "run.device", "where stages compute: cpu; cuda, or one card, cuda:1; or standin (built with the tests)"},
    {"--straggler", "run.straggler", "ACTOR[.DEVICE]=FACTOR,...: what is held back: 1=2, actor 1 at half its speed"},
};

// The folder of the run to which a checkpoint belongs.
std::string run_folder(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  const auto parent = [](const fs::path& path) { return (path.has_filename() ? path : path.parent_path()).parent_path(); };
  const fs::path named = parent(fs::path(checkpoint).lexically_normal());
  return named.empty() ? parent(fs::absolute(checkpoint).lexically_normal()).string() : named.string();
}

}  // namespace

CLI::Option* add_mesh_option(CLI::App& command, std::string& mesh) {
  return command
      .add_option("--mesh", mesh,
                  "pipe=P,data=D: P actors of D devices each, which share every micro-batch; local=L: of D hosts of L each; tensor=T, "
                  "context=C, expert=E: of as many devices for each of these, among which [layout] splits tensors")
      ->type_name("AXES");
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("CONFIG", options.file, "TOML file; every key has a default")->type_name("FILE");
  command.add_option("--set", options.settings, "overrides one key: --set train.clip=0.5")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1, -1);
  for (const Flag& flag : kFlags) {
    const std::string name = flag.name;
    if (flag.is_switch) {
      command.add_flag_callback(name, [&options, name] { options.flags[name] = "true"; }, flag.help);
      continue;
    }
    command.add_option_function<std::string>(
               name, [&options, name](const std::string& value) { options.flags[name] = value; }, flag.help)
        ->take_last();
  }
  add_mesh_option(command, options.mesh);
  command.add_option("--text", options.text, "files and folders to read")->type_name("PATH")->expected(1, -1);
  command.add_option("--resume", options.resume, "goes on from a run's newest checkpoint, or from the one named")->type_name("DIR");
  command
      .add_option(
          "--init", options.init,
          "starts from parameters: of a run or checkpoint, or of a file or folder that save_pretrained wrote, of names as the model has")
      ->type_name("DIR|FILE.safetensors");
}

Checkpoint find_intact(const std::string& path) {
  FoundCheckpoint found = find_checkpoint(path);
  for (const DamagedCheckpoint& damaged : found.damaged)
    std::fprintf(stderr, "note: %s is damaged (%s); %s is the newest intact one\n", damaged.folder.c_str(), damaged.damage.c_str(),
                 found.checkpoint.folder.c_str());
  return std::move(found.checkpoint);
}

TrainingStart start_of(const ConfigOptions& options, const Config& config, const Prepared& prepared, const ModelRegistry& models) {
  if (!options.resume.empty()) return start_from_checkpoint(config, options.resume, models);
  if (options.init.empty()) return fresh_start(config, prepared);
  std::error_code ignored;
  const bool is_run = std::filesystem::is_directory(options.init, ignored) && !is_pretrained(options.init);
  return start_from_parameters(config, prepared, is_run ? find_intact(options.init).folder : options.init, models);
}

Config load_config(const ConfigOptions& options, const ModelRegistry& models) {
  std::optional<Checkpoint> checkpoint;
  if (!options.resume.empty()) checkpoint = find_intact(options.resume);
  const bool stored = checkpoint && options.file.empty();
  std::vector<Override> overrides;
  if (stored) overrides.push_back({"run.out", run_folder(checkpoint->folder), "--resume"});
  for (const std::string& setting : options.settings) overrides.push_back(parse_override(setting));
  for (const Flag& flag : kFlags) {
    const auto given = options.flags.find(flag.name);
    if (given != options.flags.end()) overrides.push_back({flag.key, given->second, flag.name});
  }
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

void say_sizes(const Prepared& prepared) {
  if (!prepared.one_by_one.empty())
    std::fprintf(stderr, "note: stages that take several micro-batches together run them one after the other: %s\n",
                 prepared.one_by_one.c_str());
}

}  // namespace penstock
