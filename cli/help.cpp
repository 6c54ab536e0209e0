// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/text.h"

namespace penstock {
namespace {

constexpr std::size_t kWidth = 100, kColumn = 28;  // of a line; where meanings begin

// A name at the left and its meaning in a column beside it or, where the name is long, below it.
std::string row(const std::string& name, const std::string& meaning) {
  const std::string left = concat("  ", name);
  const std::size_t gap = left.size() + 2 <= kColumn ? kColumn - left.size() : 0;
  const std::string right = wrapped(std::string(kColumn, ' ') + meaning, kWidth, kColumn).substr(kColumn);
  return concat(left, gap > 0 ? std::string(gap, ' ') : concat("\n", std::string(kColumn, ' ')), right, "\n");
}

std::string row(const OptionText& option) {
  std::string name = join(option.names, ",");
  if (!option.value.empty() && !option.is_argument) name += concat(" ", option.value);
  if (option.repeats) name += " ...";
  return row(name, option.is_required ? concat(option.meaning, " (required)") : option.meaning);
}

// Lines of prose are wrapped; a command stays whole, to be copied.
std::string footer_text(const std::string& footer) {
  std::string out;
  for (const std::string& line : split(footer, '\n')) {
    const bool is_command = trim(line).starts_with("penstock ");
    const std::size_t indent = line.find_first_not_of(' ');
    const std::size_t blanks = indent == std::string::npos ? 0 : indent;
    out += is_command ? line : std::string(blanks, ' ') + wrapped(line.substr(blanks), kWidth - blanks, blanks + 2);
    out += "\n";
  }
  return out;
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* command, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
    return help_text(command_text(*command));
  }
};

}  // namespace

std::string help_text(const CommandText& command) {
  const auto plain = [](const std::string& word) { return word; };
  const std::string use = join(uses_of(command, plain), "\n       ", [&](const std::string& each) { return concat(command.name, each); });
  std::string out = concat(wrapped(command.summary, kWidth), "\n\nUsage: ", use, "\n");
  for (const std::string& group : groups_of(command.commands)) {
    out += concat("\n", group, ":\n");
    for (const CommandText& below : command.commands)
      if (below.group == group) out += row(below.own_name(), below.summary);
  }
  for (const std::string& group : groups_of(command.options)) {
    out += concat("\n", group, ":\n");
    for (const OptionText& option : command.options)
      if (option.group == group) out += row(option);
  }
  return command.footer.empty() ? out : concat(out, "\n", footer_text(command.footer));
}

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace penstock
