#include "base/papers/papers.h"

#include <algorithm>
#include <cctype>

#include "base/papers/groups.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {

const std::vector<PaperGroup>& paper_groups() {
  static const std::vector<PaperGroup> all = {table_papers(),   sequence_papers(), batch_papers(), window_papers(),
                                              planner_papers(), peer_tables(),     peer_systems()};
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
