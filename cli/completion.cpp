// SPDX-License-Identifier: Apache-2.0
// penstock completion: prints the script by which a shell completes commands, options and their words, made of the same tree as --help.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "penstock/schedule.h"

namespace penstock {
namespace {

// The program and every command below it.
std::vector<const CommandText*> all_commands(const CommandText& root) {
  std::vector<const CommandText*> out{&root};
  for (const CommandText& below : root.commands) {
    const std::vector<const CommandText*> more = all_commands(below);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

// The words that an option takes; empty: a file's name or anything else.
std::vector<std::string> words_of(const OptionText& option) {
  if (option.value != "SCHEDULE") return option.words();
  std::vector<std::string> out;
  for (const ScheduleInfo& schedule : schedules()) out.push_back(schedule.name);
  return out;
}

// The words of the first argument: commands, those of a list, and schedules where it names them, as that of simulate.
std::vector<std::string> argument_words(const CommandText& command) {
  std::vector<std::string> out;
  for (const CommandText& below : command.commands) out.push_back(below.own_name());
  for (const OptionText& option : command.options) {
    if (!option.is_argument) continue;
    const std::vector<std::string> words = option.words();
    out.insert(out.end(), words.begin(), words.end());
    if (option.meaning.find("schedule's name") != std::string::npos)
      for (const ScheduleInfo& schedule : schedules()) out.push_back(schedule.name);
  }
  return out;
}

std::vector<std::string> option_words(const CommandText& command) {
  std::vector<std::string> out;
  for (const OptionText& option : command.options)
    if (!option.is_argument) out.insert(out.end(), option.names.begin(), option.names.end());
  return out;
}

// In single quotes, for all three shells.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// A line of a shell's case: the commands that may follow the words before them.
std::string steps_down(const CommandText& root) {
  std::vector<std::string> names;
  for (const CommandText* command : all_commands(root))
    if (command != &root) names.push_back(shell_quoted(command->name));
  return join(names, "|");
}

std::string bash_script(const CommandText& root) {
  std::string values, commands;
  for (const CommandText* command : all_commands(root)) {
    for (const OptionText& option : command->options) {
      if (option.is_argument || option.value.empty()) continue;
      const std::string cases = join(option.names, "|", [&](const std::string& name) { return shell_quoted(command->name + " " + name); });
      values += concat("    ", cases, ") words=", shell_quoted(join(words_of(option), " ")), "; taken=1 ;;\n");
    }
    commands += concat("    ", shell_quoted(command->name), ") words=", shell_quoted(join(argument_words(*command), " ")),
                       "; options=", shell_quoted(join(option_words(*command), " ")), " ;;\n");
  }
  return concat(R"(# bash completion for penstock: source it, or put it into ~/.local/share/bash-completion/completions/penstock
_penstock() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=penstock words= options= taken= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${COMP_WORDS[i]}" in
    )",
                steps_down(root), R"() command+=" ${COMP_WORDS[i]}" ;;
    esac
  done
  case "$command $before" in
)",
                values, R"(  esac
  if [[ -z $taken ]]; then
    case $command in
)",
                commands, R"(    esac
    [[ $word == -* ]] && words=$options
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -o bashdefault -F _penstock penstock
)");
}

// A meaning within brackets of zsh's _arguments.
std::string zsh_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_options(const CommandText& command) {
  std::string out;
  for (const OptionText& option : command.options) {
    if (option.is_argument) continue;
    const std::vector<std::string> words = words_of(option);
    std::string value;
    if (!option.value.empty())
      value = concat(":", zsh_escaped(option.value), ":", words.empty() ? "_files" : concat("(", join(words, " "), ")"));
    for (const std::string& name : option.names)
      out += concat(" ", shell_quoted(concat(option.repeats ? "*" : "", name, "[", zsh_escaped(option.meaning), "]", value)));
  }
  return out;
}

std::string zsh_script(const CommandText& root) {
  std::string cases;
  for (const CommandText* command : all_commands(root)) {
    std::string words;
    for (const CommandText& below : command->commands)
      words += " " + shell_quoted(concat(below.own_name(), ":", zsh_escaped(below.summary)));
    if (words.empty())
      for (const std::string& word : argument_words(*command)) words += " " + shell_quoted(word);
    cases +=
        concat("    ", shell_quoted(command->name), ")\n      choices=(", words, " )\n      options=(", zsh_options(*command), " ) ;;\n");
  }
  return concat(R"(#compdef penstock
# zsh completion for penstock: put it into a folder of $fpath as _penstock
_penstock() {
  local command=penstock i
  local -a options choices
  for ((i = 2; i < CURRENT; ++i)); do
    case "$command ${words[i]}" in
    )",
                steps_down(root), R"() command+=" ${words[i]}" ;;
    esac
  done
  case $command in
)",
                cases, R"(  esac
  [[ ${words[CURRENT]} != -* && ${words[CURRENT-1]} != -* ]] && (( ${#choices} )) && _describe penstock choices
  _arguments "${options[@]}" '*:file:_files'
}
if [[ $funcstack[1] == _penstock ]]; then _penstock "$@"; else compdef _penstock penstock; fi
)");
}

std::string fish_script(const CommandText& root) {
  std::string out = concat(R"(# fish completion for penstock: put it into ~/.config/fish/completions/penstock.fish
function __penstock_command
  set -l command penstock
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
      case )",
                           join(split(steps_down(root), '|'), " "), R"(
        set command "$command $word"
    end
  end
  echo $command
end
)");
  for (const CommandText* command : all_commands(root)) {
    const std::string here = concat("complete -c penstock -n ", shell_quoted(concat("test (__penstock_command) = ", quote(command->name))));
    for (const CommandText& below : command->commands)
      out += concat(here, " -f -a ", below.own_name(), " -d ", shell_quoted(below.summary), "\n");
    if (const std::vector<std::string> words = argument_words(*command); command->commands.empty() && !words.empty())
      out += concat(here, " -a ", shell_quoted(join(words, " ")), "\n");
    for (const OptionText& option : command->options) {
      if (option.is_argument) continue;
      std::string line = here;
      for (const std::string& name : option.names)
        line += name.starts_with("--") ? concat(" -l ", name.substr(2)) : concat(" -s ", name.substr(1));
      const std::vector<std::string> words = words_of(option);
      if (!option.value.empty()) line += words.empty() ? " -r" : concat(" -x -a ", shell_quoted(join(words, " ")));
      out += concat(line, " -d ", shell_quoted(option.meaning), "\n");
    }
  }
  return out;
}

}  // namespace

void add_completion(CLI::App& program) {
  CLI::App* command = program.add_subcommand("completion", "Prints the script by which a shell completes commands and options");
  const auto shell = std::make_shared<std::string>();
  begin_group(*command, groups::kWhat);
  command->add_option("SHELL", *shell, "The shell: bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(
      "bash sources it, in ~/.bashrc for every shell; zsh takes it as _penstock in a folder of fpath,\n"
      "and fish as ~/.config/fish/completions/penstock.fish.\n"
      "Example:\n  penstock completion bash > penstock.bash");
  command->callback([shell, &program] {
    const CommandText root = command_text(program);
    std::cout << (*shell == "bash" ? bash_script(root) : *shell == "zsh" ? zsh_script(root) : fish_script(root));
  });
}

}  // namespace penstock
