#include "cli/usage.h"

#include "base/papers.h"
#include "base/text.h"
#include "config/config_keys.h"

namespace penstock {
namespace {

bool is(const CLI::Error& usage, CLI::ExitCodes code) {
  return usage.get_exit_code() == static_cast<int>(code);
}

// The innermost command that was named.
const CLI::App& command_of(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// The hint where `command` lacks one of its own commands: the first word that nothing took most likely is one, misspelled.
std::string command_hint(const CLI::App& program, const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* inner : command.get_subcommands({})) known.push_back(inner->get_name());
  for (const std::string& word : program.remaining(/*recurse=*/true))
    if (!word.starts_with("-")) {
      const std::string near = hint_for(word, known);
      return near.empty() ? concat("there is no ", quote(word), "; --help lists the commands") : near;
    }
  return "--help";
}

// The hint for an option that nothing took: it is a configuration's key, or misspelled.
std::string option_hint(const CLI::App& command, const std::string& words, const ModelRegistry& models) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  const bool has_keys = std::find(known.begin(), known.end(), "--set") != known.end();
  for (const std::string& word : split(words, ' ')) {
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    const std::string key = has_keys ? key_named(name.substr(2), models) : "";
    if (!key.empty()) return concat("it is a key of the configuration: --set ", key, "=VALUE");
    if (const std::string near = nearest(name, known); !near.empty()) return concat("did you mean ", near, "?");
  }
  return "--help";
}

// The parser's own words, where they say what is wrong.
std::string complaint(const CLI::Error& usage) {
  const std::string text = usage.what();
  const std::string conversion = "Could not convert: ";
  if (is(usage, CLI::ExitCodes::ConversionError) && text.starts_with(conversion)) {
    const std::size_t equals = text.find(" = ");
    if (equals != std::string::npos)
      return concat(text.substr(conversion.size(), equals - conversion.size()), " is ", quote(text.substr(equals + 3)),
                    ", which is not a number that it takes");
  }
  if (is(usage, CLI::ExitCodes::ArgumentMismatch) && text.find(" required ") != std::string::npos && text.ends_with(" missing"))
    return concat(text.substr(0, text.find(':')), " needs a value");
  return text;
}

std::string hint(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models) {
  const CLI::App& command = command_of(program);
  if (is(usage, CLI::ExitCodes::RequiredError) && !command.get_subcommands({}).empty()) return command_hint(program, command);
  if (is(usage, CLI::ExitCodes::ExtrasError)) return option_hint(command, usage.what(), models);
  return "--help";
}

}  // namespace

std::string usage_message(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models) {
  return concat("error: ", complaint(usage), "\n  hint: ", hint(program, usage, models), "\n");
}

}  // namespace penstock
