// SPDX-License-Identifier: Apache-2.0
// The papers whose systems are here, and the systems beside which Penstock is held: one list, which `penstock papers` and docs/papers.md
// print, and which whoever refuses a name asks. It is a file, papers.toml, and knows nothing of the schedules and planners that it names;
// tests hold it against them, and run its commands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct Paper {
  std::string name;                    // "Zero Bubble"; whoever types it writes zero-bubble as well
  std::vector<std::string> also = {};  // what else is typed for it, in lower case
  std::string title;                   // without the name, where it begins with that
  std::string number;                  // arXiv's, and where it was published
  std::string here;                    // behind "NAME is": what it is here, and how it is asked for, code between ` as in all text
  std::string idea;                    // in two sentences
  std::string picture = {};            // a command and what it prints, as a console shows them; "..." stands for lines that are left out
  std::vector<std::string> run;        // commands that run it, one behind the other
  std::vector<std::string> plan;       // commands that plan or predict it
  std::string differs;                 // what is otherwise here than in the paper, or missing, and why
  std::string claim;                   // the paper's own
  std::string found;                   // what was measured or simulated here
  std::string shown = {};              // a command that shows some of it, as `picture`
};

struct PaperGroup {
  std::string heading;
  std::vector<Paper> papers;
};

// The groups of a text such as papers.toml. Throws Error with the row.
std::vector<PaperGroup> parse_papers(std::string_view text);
// The groups of papers.toml, which is read when they are first asked for.
const std::vector<PaperGroup>& paper_groups();

// How a paper's name is typed: in lower case, with "-" for blanks.
std::string typed(std::string_view name);
// The paper of this name, or which is also called so, in any writing; null where there is none.
const Paper* find_paper(std::string_view name);
// Throws Error for a name that no paper has.
const Paper& paper_named(std::string_view name);

// A row's text without the marks of code, as a terminal shows it.
std::string plain(std::string text);

// The hint for a name that is none of `known`: what the paper of that name is here and how it is asked for, else did_you_mean.
std::string hint_for(std::string_view name, const std::vector<std::string>& known);

}  // namespace penstock
