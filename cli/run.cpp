// SPDX-License-Identifier: Apache-2.0
#include "penstock/run.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>

#include "base/stop.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/usage.h"
#include "cli/version.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "report/progress.h"

namespace penstock {
namespace {

constexpr int kUsersMistake = 1, kWrongUsage = 2;

void print_error(const std::string& message) {
  const bool colour = terminal_of(stderr).colour;
  std::fprintf(stderr, "%serror:%s %s\n", colour ? "\033[31m" : "", colour ? "\033[0m" : "", message.c_str());
}

// Writes out what was printed and may still lie in buffers. Throws Error where it cannot be written.
void finish_output() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  throw Error(concat("cannot write to standard output: ", errno != 0 ? std::strerror(errno) : "not all of it was taken"));
}

// Whether the words fit the command, and what they say is refused: a value, or options that do not go together. Keys of files are refused
// so too, by an Error; here the parser knew it first.
bool is_refusal(const CLI::ParseError& error) {
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  return code == CLI::ExitCodes::ConversionError || code == CLI::ExitCodes::ValidationError || code == CLI::ExitCodes::RequiresError ||
         code == CLI::ExitCodes::ExcludesError;
}

// Runs the command. Its exit code; to CLI11 a request for help is an error, of code 0.
int run_command(CLI::App& program, const std::vector<std::string>& words) {
  try {
    std::vector<std::string> ahead = with_arguments_ahead(words);
    std::ranges::reverse(ahead);  // the parser takes them from the end
    program.parse(ahead);
    return 0;
  } catch (const CLI::RuntimeError& failure) {
    return failure.get_exit_code();
  } catch (const CLI::ParseError& usage) {
    if (program.exit(usage) == 0) return 0;
    return is_refusal(usage) ? kUsersMistake : kWrongUsage;
  }
}

int run(CLI::App& program, const std::vector<std::string>& words) {
  try {
    const int code = run_command(program, words);
    if (code != 0) return code;
    finish_output();
    return stop_code();
  } catch (const std::bad_alloc&) {
    print_error("this machine has no memory left for it\n  hint: a smaller model, batch or table");
    return kUsersMistake;
  } catch (const std::filesystem::filesystem_error& error) {
    print_error(concat("cannot use ", error.path1().string(), ": ", error.code().message()));
    return kUsersMistake;
  } catch (const std::exception& error) {
    print_error(in_words_of(words, program, error.what()));
    return kUsersMistake;
  }
}

// The commands in groups by what one wants of them.
struct Goal {
  const char* title;
  std::vector<const char*> commands;
};

void group_commands(CLI::App& program) {
  const Goal goals[] = {{"Train a model and use it", {"train", "generate", "launch", "config", "data"}},
                        {"Find and compare schedules", {"schedule", "simulate", "batch"}},
                        {"Measure and plan for a cluster", {"profile", "plan", "size"}},
                        {"See what is computed, and that it is right", {"check", "verify", "compile", "mesh", "show"}},
                        {"Read about it", {"papers", "man", "completion"}}};
  for (const Goal& goal : goals)
    for (const char* command : goal.commands) program.get_subcommand(command)->group(goal.title);
}

void add_commands(CLI::App& program, const ModelRegistry& models) {
  add_train(program, models);
  add_generate(program, models);
  add_launch(program);
  add_config(program, models);
  add_data(program);
  add_schedule(program, models);
  add_simulate(program, models);
  add_batch(program);
  add_profile(program, models);
  add_plan(program, models);
  add_size(program, models);
  add_check(program, models);
  add_verify(program);
  add_compile(program, models);
  add_mesh(program, models);
  add_show(program);
  add_papers(program);
  add_man(program);
  add_completion(program);
  group_commands(program);
}

}  // namespace

void end_with_failure() {
  throw CLI::RuntimeError(kUsersMistake);
}

int run(int argc, char** argv, const ModelRegistry& models) {
  end_on_signals();
  ModelRegistry all = builtin_models();
  for (const auto& [name, entry] : models) all[name] = entry;

  CLI::App program("Penstock trains one model across devices: every device runs its own program", "penstock");
  program.formatter(help_formatter());
  program.require_subcommand(1);
  program.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // of all commands: scripts add options at the end
  program.set_version_flag("--version", concat("penstock ", kVersion), "Print the version and exit");
  program.set_help_flag("-h,--help", "Print this and exit");
  const std::vector<std::string> words(argv + 1, argv + argc);
  program.failure_message(
      [&](const CLI::App* app, const CLI::Error& usage) { return in_words_of(words, *app, usage_message(*app, usage, all)); });
  add_commands(program, all);
  program.footer(
      "penstock COMMAND --help says more of each. The exit code is 0; 1 where what was asked is refused;\n"
      "or 2 where the words fit no command: one that there is not, or one that is missing.\n"
      "Example:\n  penstock train --steps 100 --out runs/first\n  penstock show runs/first --out step.html");
  if (argc == 1) {
    std::fputs(program.help().c_str(), stderr);
    return kWrongUsage;
  }
  return run(program, words);
}

}  // namespace penstock
