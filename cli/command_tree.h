// SPDX-License-Identifier: Apache-2.0
// The commands and options of the program, read off the parser's tree as plain text: what --help, manual pages and completions print.
#pragma once

#include <CLI/App.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

// The groups of options, in one list so that all commands call them alike.
namespace groups {
inline constexpr const char* kWhat = "What";
inline constexpr const char* kSchedule = "Schedule";
inline constexpr const char* kTimes = "Times, links and memory";
inline constexpr const char* kModel = "Model and training";
inline constexpr const char* kWhere = "Where it runs";
inline constexpr const char* kSearch = "Search";
inline constexpr const char* kOutput = "Output";
}  // namespace groups

// Options that are added to the command from here on are of the group.
inline void begin_group(CLI::App& command, const char* group) {
  command.option_defaults()->group(group);
}

struct OptionText {
  std::vector<std::string> names;  // "-n", "--processes"; of an argument "CONFIG". Older names are left out
  std::string value;               // "N", "FILE", or its words: "cpu|cuda"; empty: it takes none, or is an argument of any text
  std::string meaning;             // with its limits and its [default]
  std::string limits;              // "from 1 to 10", "above 0"; empty: none are known
  std::string group;
  bool is_argument = false, is_required = false, repeats = false;

  // The words to choose from, where `value` lists such.
  std::vector<std::string> words() const;
};

struct CommandText {
  std::string name;  // with those above it: "penstock schedule search"
  std::string group, summary, footer;
  std::vector<OptionText> options;    // shown ones, arguments first
  std::vector<CommandText> commands;  // below it
  bool is_optional = true;            // whether it may be called without one of them

  std::string own_name() const { return name.substr(name.rfind(' ') + 1); }
  // The commands that its footer shows behind "Example:".
  std::vector<std::string> examples() const;
};

OptionText option_text(const CLI::Option& option);
CommandText command_text(const CLI::App& command);

// The groups of commands or options, each once, in their order; "Options", which has --help alone, at the end.
template <class Part>
std::vector<std::string> groups_of(const std::vector<Part>& parts) {
  std::vector<std::string> out;
  for (const Part& part : parts)
    if (std::ranges::find(out, part.group) == out.end()) out.push_back(part.group);
  std::ranges::stable_partition(out, [](const std::string& group) { return group != "Options"; });
  return out;
}
// For each way to call the command, what follows its name: " [OPTIONS] CONFIG", " COMMAND ...". `mark` sets apart a word to be replaced.
std::vector<std::string> uses_of(const CommandText& command, const std::function<std::string(const std::string&)>& mark);

// The text in lines of at most `width` letters, where its words allow that; lines behind the first begin with `indent` blanks. A line feed
// in the text is kept.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent = 0);

// The text with a capital in front.
std::string capitalised(std::string text);

}  // namespace penstock
