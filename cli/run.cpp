#include "penstock/run.h"

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
#include "cli/usage.h"
#include "cli/version.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "report/progress.h"

namespace penstock {
namespace {

constexpr int kUsersMistake = 1, kWrongUsage = 2;

void print_error(const char* message) {
  const bool colour = terminal_of(stderr).colour;
  std::fprintf(stderr, "%serror:%s %s\n", colour ? "\033[31m" : "", colour ? "\033[0m" : "", message);
}

// Writes out what was printed and may still lie in buffers. Throws Error where it cannot be written.
void finish_output() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  throw Error(concat("cannot write to standard output: ", errno != 0 ? std::strerror(errno) : "not all of it was taken"));
}

// Runs the command. Its exit code; to CLI11 a request for help is an error, of code 0.
int run_command(CLI::App& program, int argc, char** argv) {
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& failure) {
    return failure.get_exit_code();
  } catch (const CLI::ParseError& usage) {
    return program.exit(usage) == 0 ? 0 : kWrongUsage;
  }
}

int run(CLI::App& program, int argc, char** argv) {
  try {
    const int code = run_command(program, argc, argv);
    if (code != 0) return code;
    finish_output();
    return stop_code();
  } catch (const std::bad_alloc&) {
    print_error("this machine has no memory left for it\n  hint: a smaller model, batch or table");
    return kUsersMistake;
  } catch (const std::filesystem::filesystem_error& error) {
    print_error(concat("cannot use ", error.path1().string(), ": ", error.code().message()).c_str());
    return kUsersMistake;
  } catch (const std::exception& error) {
    print_error(error.what());
    return kUsersMistake;
  }
}

}  // namespace

void end_with_failure() {
  throw CLI::RuntimeError(kUsersMistake);
}

int run(int argc, char** argv, const ModelRegistry& models) {
  end_on_signals();
  ModelRegistry all = builtin_models();
  for (const auto& [name, entry] : models) all[name] = entry;

  CLI::App program("Penstock trains one model across devices: every device runs its own program.", "penstock");
  program.require_subcommand(1);
  program.set_version_flag("--version", concat("penstock ", kVersion));
  program.failure_message([&](const CLI::App* app, const CLI::Error& usage) { return usage_message(*app, usage, all); });
  add_train(program, all);
  add_generate(program, all);
  add_check(program, all);
  add_compile(program, all);
  add_schedule(program, all);
  add_batch(program);
  add_data(program);
  add_mesh(program, all);
  add_size(program, all);
  add_verify(program);
  add_profile(program, all);
  add_plan(program, all);
  add_show(program);
  add_simulate(program, all);
  add_launch(program);
  add_config(program, all);
  add_papers(program);
  if (argc == 1) {
    std::fputs(program.help().c_str(), stderr);
    return kWrongUsage;
  }
  return run(program, argc, argv);
}

}  // namespace penstock
