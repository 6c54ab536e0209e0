#include "penstock/run.h"

#include <cstdio>
#include <exception>

#include "base/text.h"
#include "cli/commands.h"
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

// Where no command was found among the words, the first of them is most likely one, misspelled.
std::string command_hint(const CLI::App& program) {
  std::vector<std::string> known;
  for (const CLI::App* command : program.get_subcommands({})) known.push_back(command->get_name());
  for (const std::string& word : program.remaining())
    if (!word.starts_with("-")) {
      const std::string near = nearest(word, known);
      return near.empty() ? concat("there is no ", quote(word), "; --help lists the commands") : concat("did you mean ", near, "?");
    }
  return "--help";
}

// An option that nothing took is most likely misspelled.
std::string usage_hint(const CLI::App& program, const CLI::Error& usage) {
  if (usage.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) && program.get_subcommands().empty())
    return command_hint(program);
  if (usage.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return "--help";
  std::vector<std::string> known;
  for (const CLI::App* command : program.get_subcommands())
    for (const CLI::Option* option : command->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const std::string& word : split(usage.what(), ' '))
    if (word.starts_with("--"))
      if (const std::string near = nearest(word, known); !near.empty()) return concat("did you mean ", near, "?");
  return "--help";
}

int run(CLI::App& program, int argc, char** argv) {
  try {
    program.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& failure) {
    return failure.get_exit_code();
  } catch (const CLI::ParseError& usage) {
    return program.exit(usage) == 0 ? 0 : kWrongUsage;
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
  ModelRegistry all = builtin_models();
  for (const auto& [name, entry] : models) all[name] = entry;

  CLI::App program("Penstock trains one model across devices: every device runs its own program.", "penstock");
  program.require_subcommand(1);
  program.failure_message([](const CLI::App* app, const CLI::Error& usage) {
    return concat("error: ", usage.what(), "\n  hint: ", usage_hint(*app, usage), "\n");
  });
  add_train(program, all);
  add_generate(program, all);
  add_check(program, all);
  add_compile(program, all);
  add_schedule(program, all);
  add_verify(program);
  add_profile(program, all);
  add_plan(program, all);
  add_show(program);
  add_simulate(program, all);
  add_launch(program);
  return run(program, argc, argv);
}

}  // namespace penstock
