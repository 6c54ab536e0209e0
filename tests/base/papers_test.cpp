// SPDX-License-Identifier: Apache-2.0
#include "base/papers.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "base/text.h"
#include "batch/batch_planners.h"
#include "penstock/plan.h"
#include "penstock/schedule.h"
#include "profile/variants.h"
#include "support/errors.h"

namespace penstock {
namespace {

std::vector<Paper> all_papers() {
  std::vector<Paper> out;
  for (const PaperGroup& group : paper_groups()) out.insert(out.end(), group.papers.begin(), group.papers.end());
  return out;
}

// The texts that the pattern's group matches, all over the text.
std::set<std::string> all_of(const std::string& text, const std::string& pattern) {
  const std::regex compiled(pattern);
  std::set<std::string> out;
  for (std::sregex_iterator found(text.begin(), text.end(), compiled), end; found != end; ++found) out.insert((*found)[1]);
  return out;
}

// The names behind a flag. "FILE.rules" is none.
std::set<std::string> asked(const Paper& paper, const std::string& flag) {
  return all_of(paper.here, flag + "([a-z0-9-]+)(?![\\w.])");
}

// The names of rows; `numbers` gets those of arXiv that their summaries name.
template <class Rows>
std::set<std::string> names_of(const Rows& rows, std::set<std::string>& numbers) {
  std::set<std::string> out;
  for (const auto& row : rows) {
    out.insert(row.name);
    numbers.merge(all_of(row.summary, "(\\d{4}\\.\\d{5})"));
  }
  return out;
}

TEST(Papers, AreFoundInAnyWriting) {
  ASSERT_TRUE(find_paper("zero bubble"));
  EXPECT_EQ(find_paper("zero bubble"), find_paper("Zero-Bubble"));
  EXPECT_EQ(find_paper("ZBV"), find_paper("zero-bubble"));
  EXPECT_EQ(find_paper("PipeWeaver"), find_paper("dip"));
  EXPECT_EQ(find_paper("1f1b"), nullptr);
}

TEST(Papers, AMisspeltNameHasAHint) {
  EXPECT_EQ(test::message_of([] { paper_named("dynapip"); }), "there is no paper \"dynapip\"\n  hint: did you mean \"dynapipe\"?");
  EXPECT_EQ(test::message_of([] { paper_named("nothing like it"); }),
            "there is no paper \"nothing like it\"\n  hint: penstock papers lists them");
}

TEST(Papers, AHintSaysHowAPaperIsAskedFor) {
  EXPECT_EQ(hint_for("DynaPipe", {"gpipe"}),
            "DynaPipe is a batch planner: --set batch.planner=dynapipe; penstock papers dynapipe says more");
  EXPECT_EQ(hint_for("gpip", {"gpipe"}), "did you mean \"gpipe\"?");
  EXPECT_EQ(hint_for("something else", {"gpipe"}), "");
}

TEST(Papers, EveryNameIsOfOnePaper) {
  std::set<std::string> seen;
  for (const Paper& paper : all_papers()) {
    EXPECT_TRUE(seen.insert(typed(paper.name)).second) << paper.name;
    for (const std::string& other : paper.also) {
      EXPECT_EQ(other, typed(other)) << paper.name;
      EXPECT_TRUE(seen.insert(other).second) << other;
    }
  }
}

// Texts are one line, commands one each; what a console shows stays as it stands.
TEST(Papers, AreReadFromText) {
  const std::vector<PaperGroup> groups = parse_papers(R"([[group]]
heading = "Tables"
[[group.paper]]
name = "One Two"
also = "three four"
title = "T"
number = "N"
here = "H"
idea = '''
an
idea
'''
run = '''
first '{"a": 1}'
second
'''
plan = "third"
differs = "D"
claim = "C"
found = "F"
shown = '''
$ echo "a  b"
a  b
'''
)");
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].papers.size(), 1u);
  const Paper& paper = groups[0].papers[0];
  EXPECT_EQ(groups[0].heading, "Tables");
  EXPECT_EQ(paper.also, (std::vector<std::string>{"three", "four"}));
  EXPECT_EQ(paper.idea, "an idea");
  EXPECT_EQ(paper.run, (std::vector<std::string>{"first '{\"a\": 1}'", "second"}));
  EXPECT_EQ(paper.plan, std::vector<std::string>{"third"});
  EXPECT_EQ(paper.picture, "");
  EXPECT_EQ(paper.shown, "$ echo \"a  b\"\na  b\n");
}

TEST(Papers, ABadRowIsNamed) {
  const auto message = [](const std::string& row) {
    return test::message_of([&] { parse_papers("[[group]]\nheading = \"Tables\"\n" + row); });
  };
  EXPECT_EQ(message("[[group.paper]]\nname = \"GPipe\"\n"), "papers.toml:3:1: GPipe has no key \"title\"");
  EXPECT_EQ(message("[[group.paper]]\nname = \"GPipe\"\ntitle = 3\n"), "papers.toml:5:9: GPipe.title must be a text");
  EXPECT_TRUE(
      message("[[group.paper]]\nname = \"GPipe\"\nclam = \"fast\"\n").starts_with("papers.toml:5:1: GPipe has an unknown key \"clam\"\n"));
  EXPECT_EQ(message("paper = 3\n"), "papers.toml:1:1: expected [[paper]]");
}

// A row says all that the page has of it.
TEST(Papers, NoRowLacksAnything) {
  for (const Paper& paper : all_papers()) {
    for (const std::string& text : {paper.title, paper.number, paper.here, paper.idea, paper.differs, paper.claim, paper.found})
      EXPECT_FALSE(text.empty()) << paper.name;
    EXPECT_FALSE(paper.run.empty()) << paper.name;
    EXPECT_FALSE(paper.plan.empty()) << paper.name;
    EXPECT_FALSE(paper.here.ends_with(".")) << paper.name;
    for (const std::string& shown : {paper.picture, paper.shown})
      EXPECT_TRUE(shown.empty() || (shown.starts_with("$ ") && shown.ends_with("\n"))) << paper.name;
  }
}

// Rows ask for what there is, under their own name where it has that, and leave out no number that another list names.
TEST(Papers, AskForWhatThereIs) {
  std::set<std::string> named, known;
  const std::map<std::string, std::set<std::string>> names = {{"--schedule ", names_of(schedules(), named)},
                                                              {"batch.planner=", names_of(batch_planners(), named)},
                                                              {"--planner ", [&] {
                                                                 std::set<std::string> all = names_of(planners(), named);
                                                                 all.merge(names_of(variant_planners(), named));
                                                                 return all;
                                                               }()}};
  for (const Paper& paper : all_papers()) {
    known.merge(all_of(paper.number, "(\\d{4}\\.\\d{5})"));
    for (const auto& [flag, there] : names)
      for (const std::string& name : asked(paper, flag)) EXPECT_TRUE(there.contains(name)) << paper.name << ": " << flag << name;
  }
  for (const auto& [flag, there] : names)
    for (const std::string& name : there)
      if (const Paper* paper = find_paper(name)) {
        EXPECT_TRUE(asked(*paper, flag).contains(name)) << flag << name;
      }
  for (const std::string& number : named) EXPECT_TRUE(known.contains(number)) << number << " is of no paper";
}

}  // namespace
}  // namespace penstock
