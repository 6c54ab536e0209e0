// SPDX-License-Identifier: Apache-2.0
#include "base/papers.h"

#include <algorithm>
#include <cctype>

#include "base/invariant.h"
#include "base/papers_toml.h"
#include "base/text.h"
#include "base/toml.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::string_view kFile = "papers.toml";

const toml::array& tables_of(const toml::table& parent, const char* key) {
  const toml::array* tables = parent[key].as_array();
  if (!tables || !tables->is_array_of_tables()) throw Error(concat(place_text(kFile, parent.source()), "expected [[", key, "]]"));
  return *tables;
}

Paper read_paper(const toml::table& table) {
  const Section row(table, table["name"].value_or(std::string("a paper")), kFile);
  row.check_keys({"name", "also", "title", "number", "here", "idea", "picture", "run", "plan", "differs", "claim", "found", "shown"});
  const auto lines = [&](const char* key) { return split(trim(row.text(key)), '\n'); };
  const auto prose = [&](const char* key) { return join(lines(key), " "); };
  const auto console = [&](const char* key) { return row.has(key) ? row.text(key) : ""; };
  return {.name = row.text("name"),
          .also = row.has("also") ? split(row.text("also"), ' ') : std::vector<std::string>{},
          .title = prose("title"),
          .number = row.text("number"),
          .here = prose("here"),
          .idea = prose("idea"),
          .picture = console("picture"),
          .run = lines("run"),
          .plan = lines("plan"),
          .differs = prose("differs"),
          .claim = prose("claim"),
          .found = prose("found"),
          .shown = console("shown")};
}

}  // namespace

std::vector<PaperGroup> parse_papers(std::string_view text) {
  const toml::table document = parse_toml(text, kFile);
  std::vector<PaperGroup> out;
  for (const toml::node& node : tables_of(document, "group")) {
    const toml::table& group = *node.as_table();
    const Section section(group, "the group", kFile);
    section.check_keys({"heading", "paper"});
    PaperGroup& read = out.emplace_back(PaperGroup{section.text("heading"), {}});
    for (const toml::node& row : tables_of(group, "paper")) read.papers.push_back(read_paper(*row.as_table()));
  }
  return out;
}

const std::vector<PaperGroup>& paper_groups() {
  static const std::vector<PaperGroup> all = [] {
    try {
      return parse_papers(kPapersToml);
    } catch (const Error& error) {
      invariant(false, error.what());
      throw;  // not reached: the file is ours
    }
  }();
  return all;
}

std::string typed(std::string_view name) {
  std::string out(name);
  for (char& letter : out) letter = letter == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return out;
}

const Paper* find_paper(std::string_view name) {
  const std::string word = typed(name);
  for (const PaperGroup& group : paper_groups())
    for (const Paper& paper : group.papers)
      if (typed(paper.name) == word || std::ranges::count(paper.also, word) > 0) return &paper;
  return nullptr;
}

const Paper& paper_named(std::string_view name) {
  if (const Paper* paper = find_paper(name)) return *paper;
  std::vector<std::string> names;
  for (const PaperGroup& group : paper_groups())
    for (const Paper& paper : group.papers) {
      names.push_back(typed(paper.name));
      names.insert(names.end(), paper.also.begin(), paper.also.end());
    }
  const std::string near = did_you_mean(typed(name), names);
  throw Error(concat("there is no paper ", quote(name)), {}, near.empty() ? "penstock papers lists them" : near);
}

std::string plain(std::string text) {
  std::erase(text, '`');
  return text;
}

std::string hint_for(std::string_view name, const std::vector<std::string>& known) {
  const Paper* paper = find_paper(name);
  if (!paper) return did_you_mean(name, known);
  return concat(name, " is ", plain(paper->here), "; penstock papers ", typed(paper->name), " says more");
}

}  // namespace penstock
