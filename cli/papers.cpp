// SPDX-License-Identifier: Apache-2.0
// penstock papers: the papers whose systems are here, and the systems beside which it is held.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/papers.h"
#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::size_t kPageWidth = 140, kTextWidth = 100;

constexpr const char* kIntroduction =
    "Each system that Penstock can express, and each that it is held beside: the idea, the command that runs it and the one that plans it, "
    "what differs from the paper, what the paper claims and what was found here. `penstock papers NAME` prints a row. The page is what "
    "`penstock papers --markdown` prints, from `src/base/papers.toml`; every command in it is run by a test. Names of papers are "
    "known where schedules and planners are asked for, too: `penstock schedule dynapipe` says how DynaPipe is asked for. "
    "docs/better_than_each.md has each of the systems, down to Sizing, beside what Penstock finds without being told which.";

struct PapersArguments {
  std::string name;
  bool markdown = false, json = false;
};

std::string paragraph(const std::string& text, std::size_t width) {
  return wrapped(text, width) + "\n";
}

std::string numbered(const Paper& paper) {
  return concat(" (", paper.number, ")");
}

nlohmann::ordered_json json_of(const Paper& paper) {
  return {{"name", typed(paper.name)},   {"also", paper.also},
          {"title", paper.title},        {"number", paper.number},
          {"here", plain(paper.here)},   {"idea", plain(paper.idea)},
          {"picture", paper.picture},    {"run", paper.run},
          {"plan", paper.plan},          {"differs", plain(paper.differs)},
          {"claim", plain(paper.claim)}, {"found", plain(paper.found)},
          {"shown", paper.shown}};
}

std::string text_of(const Paper& paper) {
  const auto says = [](const char* label, const std::string& text) { return paragraph(plain(concat(label, text)), kTextWidth); };
  const auto commands = [](const char* label, const std::vector<std::string>& lines) {
    return join(lines, "", [&](const std::string& line) { return concat(label, line, "\n"); });
  };
  const auto console = [](const std::string& shown) { return shown.empty() ? "" : concat("\n", shown); };
  return concat(says("", concat(paper.name, ": ", paper.title, numbered(paper))), says("Here it is ", paper.here), "\n",
                says("", paper.idea), console(paper.picture), "\n", commands("run   ", paper.run), commands("plan  ", paper.plan), "\n",
                says("Differs: ", paper.differs), says("Claim: ", paper.claim), says("Found: ", paper.found), console(paper.shown));
}

std::string section_of(const Paper& paper) {
  const auto says = [](const std::string& text) { return concat("\n", paragraph(text, kPageWidth)); };
  const auto console = [](const std::string& shown) { return shown.empty() ? "" : concat("\n```console\n", shown, "```\n"); };
  const auto commands = [](const std::vector<std::string>& lines) { return concat("\n```\n", join(lines, "\n"), "\n```\n"); };
  return concat("\n### ", paper.name, "\n", says(concat("*", paper.title, "*", numbered(paper), ". Here it is ", paper.here, ".")),
                says(paper.idea), console(paper.picture), says("It runs by"), commands(paper.run), says("and is planned or predicted by"),
                commands(paper.plan), says(concat("**What differs.** ", paper.differs)), says(concat("**Its claim.** ", paper.claim)),
                says(concat("**Found here.** ", paper.found)), console(paper.shown));
}

// docs/papers.md
std::string page() {
  std::string out = concat("# Papers\n\n", paragraph(kIntroduction, kPageWidth), "\n| name | number | here |\n|---|---|---|\n");
  for (const PaperGroup& group : paper_groups())
    for (const Paper& paper : group.papers) out += concat("| ", typed(paper.name), " | ", paper.number, " | ", paper.here, " |\n");
  for (const PaperGroup& group : paper_groups()) out += concat("\n## ", group.heading, "\n", join(group.papers, "", section_of));
  return out;
}

void list_papers(bool json) {
  nlohmann::ordered_json out;
  std::size_t width = 0;
  for (const PaperGroup& group : paper_groups())
    for (const Paper& paper : group.papers) {
      out["papers"].push_back(json_of(paper));
      width = std::max(width, paper.name.size());
    }
  if (json) return print_json(out);
  for (const PaperGroup& group : paper_groups()) {
    std::cout << group.heading << "\n";
    for (const Paper& paper : group.papers)
      std::cout << concat("  ", typed(paper.name), std::string(width + 2 - paper.name.size(), ' '), plain(paper.here), numbered(paper),
                          "\n");
  }
}

void papers(const PapersArguments& arguments) {
  if (arguments.markdown) {
    if (!arguments.name.empty()) throw Error("--markdown prints the whole page", {}, concat("leave out ", arguments.name));
    std::cout << page();
  } else if (arguments.name.empty()) {
    list_papers(arguments.json);
  } else if (const Paper& paper = paper_named(arguments.name); arguments.json) {
    print_json(json_of(paper));
  } else {
    std::cout << text_of(paper);
  }
}

}  // namespace

void add_papers(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("papers", "Lists the papers whose systems are here, or says of one how it is run and what was found");
  const auto arguments = std::make_shared<PapersArguments>();
  begin_group(*command, groups::kWhat);
  command->add_option("NAME", arguments->name, "A paper or a system, as dynapipe [all]");
  command->add_flag("--markdown", arguments->markdown, "Print docs/papers.md");
  add_json_flag(*command, arguments->json);
  command->footer(
      "Example:\n  penstock papers\n"
      "  penstock papers dynapipe");
  command->callback([arguments] { papers(*arguments); });
}

}  // namespace penstock
