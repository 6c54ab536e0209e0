// SPDX-License-Identifier: Apache-2.0
// The subcommands, one file each. Each function adds a command to the program, with its options, an example, and what it does.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "penstock/trace.h"

namespace penstock {

// The registry must outlive the program's run.
void add_train(CLI::App& program, const ModelRegistry& models);
void add_generate(CLI::App& program, const ModelRegistry& models);
void add_check(CLI::App& program, const ModelRegistry& models);
void add_compile(CLI::App& program, const ModelRegistry& models);
void add_schedule(CLI::App& program, const ModelRegistry& models);
// These are subcommands of penstock schedule.
void add_schedule_search(CLI::App& schedule, const ModelRegistry& models);
void add_schedule_compare(CLI::App& schedule);
void add_batch(CLI::App& program);
void add_data(CLI::App& program);
void add_mesh(CLI::App& program, const ModelRegistry& models);
void add_size(CLI::App& program, const ModelRegistry& models);
void add_papers(CLI::App& program);
void add_verify(CLI::App& program);
void add_profile(CLI::App& program, const ModelRegistry& models);
void add_plan(CLI::App& program, const ModelRegistry& models);
void add_show(CLI::App& program);
void add_simulate(CLI::App& program, const ModelRegistry& models);
void add_launch(CLI::App& program);
void add_config(CLI::App& program, const ModelRegistry& models);
void add_completion(CLI::App& program);
void add_man(CLI::App& program);

// Ends the program with exit code 1, after the mistake has been shown.
[[noreturn]] void end_with_failure();

}  // namespace penstock
