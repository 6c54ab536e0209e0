#include "cli/usage.h"

#include <algorithm>

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

// What other systems call something: names of options there, the option that says it here, and the hint.
struct OtherWords {
  std::string_view names, option, hint;
};

constexpr OtherWords kOtherWords[] = {
    {"epochs num-epochs num-train-epochs", "--steps", "a run counts steps, each of one batch: --steps N"},
    {"gpus num-gpus devices nproc-per-node world-size", "--mesh", "a mesh says how many devices there are: --mesh pipe=2,data=2"},
    {"pp stages num-stages pipeline-parallel-size pipeline-model-parallel-size", "--actors", "actors share the stages: --actors N"},
    {"tp tensor-parallel-size tensor-model-parallel-size", "--mesh", "tensors are split along an axis: --mesh pipe=2,tensor=2"},
    {"dp data-parallel-size", "--mesh", "samples are shared along an axis: --mesh pipe=2,data=2"},
    {"cp context-parallel-size", "--mesh", "sequences are split along an axis: --mesh pipe=2,context=2"},
    {"ep expert-parallel-size expert-model-parallel-size", "--mesh", "experts are shared along an axis: --mesh pipe=2,expert=2"},
    {"bs batch-size global-batch-size", "--batch", "--batch N: the samples of a step"},
    {"micro-batch-size gradient-accumulation-steps", "--microbatches", "a step has so many micro-batches: --microbatches N"},
    {"bf16 fp16 amp precision", "--dtype", "--dtype f32, f64 or bf16"},
    {"output output-dir save", "--out", "--out DIR"},
    {"load resume-from", "--resume", "--resume RUN"},
};

// The hint for an option by its name elsewhere; "": it is none, or the command has not what is meant.
std::string hint_for_other_word(std::string_view name, const std::vector<std::string>& known) {
  for (const OtherWords& other : kOtherWords) {
    const std::vector<std::string> names = split(other.names, ' ');
    if (std::ranges::find(names, name) != names.end() && std::ranges::find(known, other.option) != known.end())
      return std::string(other.hint);
  }
  return "";
}

// The hint where `command` lacks one of its own commands: the first word that nothing took most likely is one, misspelled.
std::string command_hint(const CLI::App& program, const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* inner : command.get_subcommands({})) known.push_back(inner->get_name());
  for (const std::string& word : program.remaining(/*recurse=*/true))
    if (!word.starts_with("-")) {
      if (command.get_option_no_throw("--" + word)) return concat("did you mean --", word, "?");
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
    if (std::string other = hint_for_other_word(name.substr(2), known); !other.empty()) return other;
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
