// SPDX-License-Identifier: Apache-2.0
// penstock man: prints manual pages, made of the same tree as --help.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "base/papers.h"
#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Text for roff: a backslash and a leading dot or quote would be read as requests, a hyphen would be set as a dash.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string entry(const OptionText& option) {
  const std::string name = join(option.names, ", ", [](const std::string& each) { return concat("\\fB", roff(each), "\\fR"); });
  const std::string value = option.value.empty() ? "" : concat(" \\fI", roff(option.value), "\\fR");
  return concat(".TP\n", name, value, option.repeats ? " ...\n" : "\n", roff(option.meaning), option.is_required ? " (required)\n" : "\n");
}

std::string options_section(const CommandText& command) {
  std::string out;
  for (const std::string& group : groups_of(command.options)) {
    out += concat(".SS ", roff(group), "\n");
    for (const OptionText& option : command.options)
      if (option.group == group) out += entry(option);
  }
  return out;
}

std::string page_name(const CommandText& command) {
  std::string out = command.name;
  std::ranges::replace(out, ' ', '-');
  return out;
}

// The footer's text ahead of its examples.
std::string notes_of(const CommandText& command) {
  return std::string(trim(command.footer.substr(0, command.footer.find("Example:"))));
}

std::string synopsis(const CommandText& command) {
  const auto mark = [](const std::string& word) { return concat("\\fI", roff(word), "\\fR"); };
  return join(uses_of(command, mark), "\n.br\n", [&](const std::string& use) { return concat("\\fB", roff(command.name), "\\fR", use); });
}

std::string manual_page(const CommandText& command, const std::string& version) {
  std::string title = page_name(command);
  std::ranges::transform(title, title.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string out = concat(".TH \"", roff(title), "\" 1 \"\" \"", version, "\" \"Penstock\"\n.SH NAME\n", roff(page_name(command)), " \\- ",
                           roff(command.summary), "\n.SH SYNOPSIS\n", synopsis(command), "\n");
  if (const std::string notes = notes_of(command); !notes.empty())
    out += concat(".SH DESCRIPTION\n",
                  join(split(notes, '\n'), "\n.br\n", [](const std::string& line) { return roff(std::string(trim(line))); }), "\n");
  if (!command.commands.empty()) {
    out += ".SH COMMANDS\n";
    for (const CommandText& below : command.commands)
      out += concat(".TP\n\\fB", roff(below.own_name()), "\\fR\n", roff(below.summary), "\n");
  }
  out += concat(".SH OPTIONS\n", options_section(command));
  if (const std::vector<std::string> examples = command.examples(); !examples.empty())
    out += concat(".SH EXAMPLES\n.nf\n", join(examples, "\n", roff), "\n.fi\n");
  return out +
         ".SH EXIT STATUS\n0, or 1 for a mistake in what was asked for, 2 for a command line that cannot be read.\n"
         ".SH SEE ALSO\n\\fBpenstock\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR\n";
}

const CommandText& command_named(const CommandText& root, const std::vector<std::string>& path) {
  const CommandText* out = &root;
  for (const std::string& name : path) {
    const auto found = std::ranges::find_if(out->commands, [&](const CommandText& below) { return below.own_name() == name; });
    std::vector<std::string> known;
    for (const CommandText& below : out->commands) known.push_back(below.own_name());
    if (found == out->commands.end()) {
      const std::string near = hint_for(name, known),
                        all = known.empty() ? concat("penstock man ", out->own_name()) : concat("its commands: ", join(known, ", "));
      throw Error(concat(out->name, " has no command ", quote(name)), {}, near.empty() ? all : near);
    }
    out = &*found;
  }
  return *out;
}

}  // namespace

void add_man(CLI::App& program) {
  CLI::App* command = program.add_subcommand("man", "Prints the manual page of the program or of a command, for man -l");
  const auto path = std::make_shared<std::vector<std::string>>();
  begin_group(*command, groups::kWhat);
  command->add_option("COMMAND", *path, "The command, as schedule search; none: the program");
  command->footer("Example:\n  penstock man train > penstock-train.1\n  penstock man schedule search > search.1");
  command->callback([path, &program] { std::cout << manual_page(command_named(command_text(program), *path), program.version()); });
}

}  // namespace penstock
