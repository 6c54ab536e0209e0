// SPDX-License-Identifier: Apache-2.0
// The options that train, check and compile share: a configuration and its overrides.
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <string>
#include <vector>

#include "cli/log.h"
#include "config/config.h"
#include "driver/training.h"
#include "penstock/trace.h"
#include "state/checkpoint.h"

namespace penstock {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> settings;         // each "key=value"
  std::map<std::string, std::string> flags;  // "--steps" -> "400"
  std::vector<std::string> text;
  std::string mesh;
  std::string resume;  // a run's or a checkpoint's folder
  std::string init;    // a file of parameters, a run or a checkpoint
  Log log;
};

// Adds --mesh, which parse_mesh() of config/config.h reads. `mesh` must outlive the command's parse.
CLI::Option* add_mesh_option(CLI::App& command, std::string& mesh);

// `options` must outlive the command's parse.
void add_config_options(CLI::App& command, ConfigOptions& options);

// Does as find_checkpoint, with a note for damaged checkpoints that were passed over.
Checkpoint find_intact(const std::string& path, const Log& log);

// Where training begins: at what --resume names, at parameters that --init names (of a run those of its newest checkpoint, as find_intact),
// or afresh.
TrainingStart start_of(const ConfigOptions& options, const Config& config, const Prepared& prepared, const ModelRegistry& models);

// Loads the file, else the resumed checkpoint's configuration, else the defaults; then --set, then the flags apply. A resumed run keeps its
// learning rate (keep_learning_rate); without a file it goes on in its own folder. Throws Error.
Config load_config(const ConfigOptions& options, const ModelRegistry& models);

// Notes where stages run one after the other what the table has them take together, and why.
void say_sizes(const Prepared& prepared, const Log& log);

}  // namespace penstock
