// SPDX-License-Identifier: Apache-2.0
#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/papers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "config/config_keys.h"

namespace penstock {
namespace {

// The mistake and the way out, each without its heading.
struct Complaint {
  std::string what, hint;
};

bool is(const CLI::Error& usage, CLI::ExitCodes code) {
  return usage.get_exit_code() == static_cast<int>(code);
}

// The innermost command that was named.
const CLI::App& command_of(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

// The meaning of an option within a sentence: its first letter is small unless it is a name's.
std::string in_a_sentence(std::string meaning) {
  const auto is_small = [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0 || c == ' '; };
  if (meaning.size() > 1 && is_small(meaning[1])) meaning[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(meaning[0])));
  return meaning;
}

// "--steps N: training steps of the whole run", as a hint.
std::string said_of(const OptionText& option) {
  const std::string value = option.value.empty() || option.is_argument ? "" : " " + option.value;
  return concat(option.names.back(), value, ": ", in_a_sentence(option.meaning));
}

std::string help_of(const CommandText& command) {
  return concat(command.name, " --help");
}

// Names that options of other systems have, the option that says the same here, and the hint.
struct OtherWords {
  std::string_view names, option, hint;
};

constexpr OtherWords kOtherWords[] = {
    {"epochs num-epochs num-train-epochs", "--steps", "a run counts steps, each of one batch: --steps N"},
    {"gpus num-gpus devices nproc-per-node world-size ngpus", "--mesh", "a mesh says how many devices there are: --mesh pipe=2,data=2"},
    {"gpus num-gpus ngpus world-size", "--devices", "--devices N"},
    {"gpus num-gpus devices ngpus workers world-size ranks", "--actors", "actors share the stages: --actors N"},
    {"nproc-per-node np nprocs gpus num-gpus devices", "--processes", "--processes N, or -n N"},
    {"pp stages num-stages pipeline-parallel-size pipeline-model-parallel-size", "--actors", "actors share the stages: --actors N"},
    {"tp tensor-parallel-size tensor-model-parallel-size", "--mesh", "tensors are split along an axis: --mesh pipe=2,tensor=2"},
    {"dp data-parallel-size", "--mesh", "samples are shared along an axis: --mesh pipe=2,data=2"},
    {"cp context-parallel-size", "--mesh", "sequences are split along an axis: --mesh pipe=2,context=2"},
    {"ep expert-parallel-size expert-model-parallel-size", "--mesh", "experts are shared along an axis: --mesh pipe=2,expert=2"},
    {"bs batch-size global-batch-size", "--batch", "--batch N: the samples of a step"},
    {"micro-batch-size gradient-accumulation-steps num-microbatches micro-batches", "--microbatches",
     "a step has so many micro-batches: --microbatches N"},
    {"microbatches micro-batch-size", "--microbatch-sizes", "a plan says how many there are; --microbatch-sizes 1,2,4 are to choose from"},
    {"virtual-stages vpp num-layers-per-virtual-pipeline-stage interleave", "--chunks", "an actor has so many stages: --chunks N"},
    {"bf16 fp16 amp precision", "--dtype", "--dtype f32, f64 or bf16"},
    {"output output-dir save", "--out", "--out DIR, or a file where one is written"},
    {"load resume-from checkpoint ckpt", "--resume", "--resume RUN"},
    {"max-memory vram gpu-memory", "--memory-limit", "--memory-limit BYTES, as 16GB"},
    {"max-memory vram gpu-memory", "--activation-limit", "--activation-limit, in activations of micro-batches"},
    {"input-text data dataset", "--text", "--text PATH"},
    {"max-new-tokens max-tokens length", "--tokens", "--tokens N"},
    {"temp", "--temperature", "--temperature X"},
    {"gpu card accelerator", "--device", "--device cuda"},
    {"plot draw", "--show", "--show draws it on the terminal"},
    {"algorithm strategy", "--planner", "--planner NAME"},
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

// Every name of the command's options, older ones too.
std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  return out;
}

// Lists the options there are, for a word that is near to none of them.
std::string options_there_are(const CommandText& command) {
  constexpr std::size_t kMost = 20;
  std::vector<std::string> names;
  for (const OptionText& option : command.options)
    if (!option.is_argument) names.push_back(option.names.back());
  if (names.size() > kMost) return concat(help_of(command), " lists its options");
  return concat("its options: ", join(names, ", "));
}

// The hint for an option that nothing took: it is a configuration's key, another system's, or misspelled.
std::string option_hint(const CLI::App& command, const std::string& option, const ModelRegistry& models) {
  const std::vector<std::string> known = option_names(command);
  const std::string name = option.substr(std::min(option.find_first_not_of('-'), option.size()));
  if (std::string other = hint_for_other_word(name, known); !other.empty()) return other;
  const bool has_keys = std::ranges::find(known, "--set") != known.end();
  const std::string key = has_keys ? key_named(name, models) : "";
  const std::string near = nearest(name, [&] {
    std::vector<std::string> names;
    for (const std::string& each : known) names.push_back(each.substr(2));
    return names;
  }());
  if (!key.empty()) return concat("it is a key of the configuration: --set ", key, "=VALUE");
  return near.empty() ? options_there_are(command_text(command)) : concat("did you mean --", near, "?");
}

Complaint unexpected(const CLI::App& program, const CLI::App& command, const ModelRegistry& models) {
  const std::vector<std::string> words = program.remaining(/*recurse=*/true);
  const CommandText text = command_text(command);
  for (const std::string& word : words)
    if (word.starts_with("-") && word.size() > 1) {
      const std::string option = word.substr(0, word.find('='));
      return {concat(text.name, " has no option ", option), option_hint(command, option, models)};
    }
  const std::string word = words.empty() ? "" : words.front();
  if (word.find('=') != std::string::npos && command.get_option_no_throw("--set"))
    return {concat(text.name, " takes no argument ", quote(word)), concat("--set ", word)};
  const std::string examples = text.examples().empty() ? help_of(text) : concat("as in: ", text.examples().front());
  return {concat(text.name, " takes no further argument ", quote(word)), examples};
}

// The complaint where `command` lacks one of its own commands: the first word that nothing took most likely is one, misspelled.
Complaint missing_command(const CLI::App& program, const CLI::App& command, const ModelRegistry& models) {
  const CommandText text = command_text(command);
  std::vector<std::string> known;
  for (const CommandText& below : text.commands) known.push_back(below.own_name());
  for (const std::string& word : program.remaining(/*recurse=*/true)) {
    if (word.starts_with("-")) continue;
    const std::string what = concat(text.name, " has no command ", quote(word));
    if (command.get_option_no_throw("--" + word)) return {what, concat("did you mean --", word, "?")};
    const std::string near = hint_for(word, known);
    return {what, near.empty() ? concat("there is no ", quote(word), "; the commands: ", join(known, ", ")) : near};
  }
  if (!program.remaining(/*recurse=*/true).empty()) return unexpected(program, command, models);
  return {concat(text.name, " needs a command: ", join(known, ", ")), help_of(text)};
}

// The complaint where an argument or an option is required.
Complaint missing_argument(const CLI::App& command, const std::string& name) {
  const CommandText text = command_text(command);
  const std::string hint = text.examples().empty() ? help_of(text) : concat("as in: ", text.examples().front());
  const CLI::Option* option = command.get_option_no_throw(name);
  if (!option) return {concat(text.name, " needs ", name), hint};
  return {concat(text.name, " needs ", said_of(option_text(*option))), hint};
}

// "--steps: ...", as the parser begins what it says of an option's value.
std::string option_of(const std::string& text) {
  return text.substr(0, text.find(':'));
}

// The complaint where a value is refused, "--columns: Value 0 not in range 10 to 100" or "--emit: poem not in {graph,program}".
Complaint refused_value(const CLI::App& command, const std::string& text) {
  const std::string name = option_of(text);
  const CLI::Option* option = command.get_option_no_throw(name);
  const std::size_t end = text.find(" not in "), begin = name.size() + 2;
  if (!option || end == std::string::npos || end < begin) return {text, help_of(command_text(command))};
  std::string value = text.substr(begin, end - begin);
  if (value.starts_with("Value ")) value = value.substr(6);
  const OptionText said = option_text(*option);
  const std::vector<std::string> words = said.words();
  if (words.empty()) return {concat(name, " is ", value, "; it is ", said.limits.empty() ? "a number" : said.limits), said_of(said)};
  const std::string near = did_you_mean(value, words), all = concat("it takes ", join(words, ", "));
  return {concat(name, " is ", quote(value), ", which it does not know"), near.empty() ? all : concat(all, "; ", near)};
}

Complaint not_a_number(const CLI::App& command, const std::string& text) {
  const std::string begin = "Could not convert: ";
  const std::size_t equals = text.find(" = ");
  if (!text.starts_with(begin) || equals == std::string::npos) return {text, help_of(command_text(command))};
  const std::string name = text.substr(begin.size(), equals - begin.size());
  const CLI::Option* option = command.get_option_no_throw(name);
  return {concat(name, " is ", quote(text.substr(equals + 3)), ", which is not a number that it takes"),
          option ? said_of(option_text(*option)) : help_of(command_text(command))};
}

Complaint missing_value(const CLI::App& command, const std::string& text) {
  if (text.ends_with("disallowed flag override")) return {concat(text.substr(0, text.find(' ')), " takes no value"), "leave the value out"};
  const std::string name = option_of(text);
  const CLI::Option* option = command.get_option_no_throw(name);
  if (!option || text.find(" required ") == std::string::npos) return {text, help_of(command_text(command))};
  return {concat(name, " needs a value"), said_of(option_text(*option))};
}

// "--mesh requires --measure", "--resume excludes --init".
Complaint not_together(const CLI::App& command, const std::string& text) {
  const std::vector<std::string> words = split(text, ' ');
  if (words.size() == 3 && words[1] == "excludes")
    return {concat(words[0], " and ", words[2], " do not go together"), "leave one of them out"};
  if (words.size() == 3 && words[1] == "requires")
    return {concat(words[0], " says nothing without ", words[2]), concat("add ", said_of(option_text(*command.get_option(words[2]))))};
  return {text, help_of(command_text(command))};
}

Complaint complaint_of(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models) {
  const CLI::App& command = command_of(program);
  const std::string text = usage.what();
  if (is(usage, CLI::ExitCodes::RequiredError) && text == "A subcommand is required") return missing_command(program, command, models);
  if (is(usage, CLI::ExitCodes::RequiredError)) return missing_argument(command, text.substr(0, text.find(' ')));
  if (is(usage, CLI::ExitCodes::ExtrasError)) return unexpected(program, command, models);
  if (is(usage, CLI::ExitCodes::ConversionError)) return not_a_number(command, text);
  if (is(usage, CLI::ExitCodes::ArgumentMismatch)) return missing_value(command, text);
  if (is(usage, CLI::ExitCodes::ValidationError)) return refused_value(command, text);
  if (is(usage, CLI::ExitCodes::ExcludesError) || is(usage, CLI::ExitCodes::RequiresError)) return not_together(command, text);
  return {text, help_of(command_text(command))};
}

// Replaces `from` where it is a word of its own in what stands ahead of the hint.
void replace_word(std::string& message, const std::string& from, const std::string& to) {
  const auto is_inside = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; };
  for (std::size_t at = message.find(from); at != std::string::npos && at < message.find("\n  hint: "); at = message.find(from, at + 1)) {
    const std::size_t end = at + from.size();
    if ((at > 0 && is_inside(message[at - 1])) || (end < message.size() && is_inside(message[end]))) continue;
    message.replace(at, from.size(), to);
  }
}

}  // namespace

std::string usage_message(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models) {
  const auto [what, hint] = complaint_of(program, usage, models);
  return concat("error: ", what, "\n  hint: ", hint, "\n");
}

std::string in_words_of(const std::vector<std::string>& words, const CLI::App& program, const std::string& message) {
  std::string out = message;
  const auto is_written = [&](const std::string& name) {
    return std::ranges::any_of(words, [&](const std::string& word) { return word.substr(0, word.find('=')) == name; });
  };
  for (const CLI::Option* option : command_of(program).get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    for (std::size_t i = 1; i < names.size(); ++i)
      if (is_written("--" + names[i]) && !is_written("--" + names[0])) replace_word(out, "--" + names[0], "--" + names[i]);
  }
  return out;
}

std::vector<std::string> with_arguments_ahead(const std::vector<std::string>& words) {
  constexpr std::string_view kOptions[] = {"--set", "--vary", "--link", "--straggler", "--section"};
  std::vector<std::string> out;
  const auto end = std::ranges::find(words, "--");
  std::size_t option = 0;  // where it is in `out`
  bool within = false;     // whether a value of it may follow
  for (auto word = words.begin(); word != end; ++word) {
    if (word->starts_with("-")) {
      within = std::ranges::find(kOptions, *word) != std::end(kOptions);
      option = out.size();
    }
    const bool is_argument = within && out.size() > option + 1 && !word->starts_with("-") && word->find('=') == std::string::npos;
    out.insert(is_argument ? out.begin() + static_cast<std::ptrdiff_t>(option++) : out.end(), *word);
  }
  out.insert(out.end(), end, words.end());
  return out;
}

}  // namespace penstock
