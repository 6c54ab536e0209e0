// SPDX-License-Identifier: Apache-2.0
#include "cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace penstock {
namespace {

// The parser's name of what an option takes, and the checks behind it: "INT:INT in [1 - 10]" -> "INT" and "INT in [1 - 10]".
std::pair<std::string, std::string> type_and_check(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  for (const char* check : {":INT in", ":UINT in", ":FLOAT in", ":POSITIVE", ":NONNEGATIVE", ":{"})
    if (const std::size_t at = type.find(check); at != std::string::npos) return {type.substr(0, at), type.substr(at + 1)};
  return {type, ""};
}

std::string value_of(const CLI::Option& option) {
  if (option.get_type_size() == 0 || option.get_expected_max() == 0) return "";
  const auto [type, check] = type_and_check(option);
  std::string out = type == "INT" || type == "UINT" ? "N" : type == "FLOAT" ? "X" : type;
  if (type == "TEXT" && check.starts_with("{")) {
    out = check.substr(1, check.size() - 2);
    std::ranges::replace(out, ',', '|');
  }
  if (option.get_delimiter() != '\0') out += ",...";
  return out;
}

// "from 1 to 10", "at least 1", "above 0": the limits that the parser checks; "": there are none to tell.
std::string limits_of(const CLI::Option& option) {
  const std::string check = type_and_check(option).second;
  if (check == "POSITIVE") return "above 0";
  if (check == "NONNEGATIVE") return "0 or above";
  const std::size_t begin = check.find(" in ["), dash = check.find(" - ");
  if (begin == std::string::npos || dash == std::string::npos) return "";
  const std::string least = check.substr(begin + 5, dash - begin - 5), most = check.substr(dash + 3, check.size() - dash - 4);
  return most.size() > 8 ? concat("at least ", least) : concat("from ", least, " to ", most);
}

std::string names_text(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return join(names, ", ");
}

std::string meaning_of(const CLI::Option& option) {
  std::string text = capitalised(option.get_description());
  std::string fallback;
  if (text.ends_with("]")) {
    const std::size_t bracket = text.rfind(" [");
    fallback = text.substr(bracket);
    text.resize(bracket);
  } else if (!option.get_default_str().empty()) {
    fallback = concat(" [", option.get_default_str(), "]");
  }
  if (const std::string limits = limits_of(option); !limits.empty()) text += concat(", ", limits);
  if (!option.get_needs().empty()) text += concat("; with ", names_text(option.get_needs()));
  if (!option.get_excludes().empty()) text += concat("; not with ", names_text(option.get_excludes()));
  return text + fallback;
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() ? concat(full_name(*command.get_parent()), " ", command.get_name()) : command.get_name();
}

}  // namespace

std::vector<std::string> OptionText::words() const {
  if (value.find('|') == std::string::npos || std::ranges::any_of(value, [](unsigned char c) { return std::isupper(c) != 0; })) return {};
  return split(value.substr(0, value.find(",...")), '|');
}

std::vector<std::string> CommandText::examples() const {
  std::vector<std::string> out;
  const std::size_t begin = footer.find("Example:");
  if (begin == std::string::npos) return out;
  for (const std::string& line : split(footer.substr(begin), '\n'))
    if (const std::string_view example = trim(line); example.starts_with("penstock ")) out.emplace_back(example);
  return out;
}

OptionText option_text(const CLI::Option& option) {
  OptionText out;
  out.is_argument = option.get_positional();
  if (out.is_argument) {
    out.names = {option.get_name(true, false)};
    if (type_and_check(option).second.starts_with("{")) out.value = value_of(option);
  } else {
    for (const std::string& letter : option.get_snames()) out.names.push_back("-" + letter);
    if (!option.get_lnames().empty()) out.names.push_back("--" + option.get_lnames().front());
    out.value = value_of(option);
  }
  out.meaning = meaning_of(option);
  out.limits = limits_of(option);
  out.group = out.is_argument ? groups::kWhat : option.get_group();
  out.is_required = option.get_required();
  out.repeats = option.get_expected_max() > 1 && option.get_delimiter() == '\0';
  return out;
}

CommandText command_text(const CLI::App& command) {
  CommandText out;
  out.name = full_name(command);
  out.group = command.get_group();
  out.summary = command.get_description();
  out.footer = command.get_footer();
  out.is_optional = command.get_require_subcommand_min() == 0;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty()) out.options.push_back(option_text(*option));
  std::ranges::stable_partition(out.options, &OptionText::is_argument);
  for (const CLI::App* below : command.get_subcommands({}))
    if (!below->get_group().empty()) out.commands.push_back(command_text(*below));
  return out;
}

std::vector<std::string> uses_of(const CommandText& command, const std::function<std::string(const std::string&)>& mark) {
  std::vector<std::string> out = {concat(" [", mark("OPTIONS"), "]")};
  for (const OptionText& option : command.options) {
    if (!option.is_argument) continue;
    const std::string name = concat(mark(option.names[0]), option.repeats ? "..." : "");
    out[0] += option.is_required ? concat(" ", name) : concat(" [", name, "]");
  }
  if (command.commands.empty()) return out;
  const std::string below = concat(" ", mark("COMMAND"), " ...");
  if (command.is_optional)
    out.push_back(below);
  else
    out[0] += below;
  return out;
}

std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  for (const std::string& line : split(text, '\n')) {
    if (!out.empty()) out += concat("\n", std::string(column = indent, ' '));
    bool first = true;
    for (const std::string& word : split(line, ' ')) {
      if (!first && column + 1 + word.size() > width) {
        out += concat("\n", std::string(column = indent, ' '));
      } else if (!first) {
        out += " ";
        ++column;
      }
      out += word;
      column += word.size();
      first = false;
    }
  }
  return out;
}

std::string capitalised(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace penstock
