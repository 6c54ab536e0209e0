// SPDX-License-Identifier: Apache-2.0
// Two types of one name in two headers are undefined behaviour that no compiler sees: their functions are merged when the program is
// linked.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>

#include "base/text.h"
#include "support/paths.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The types that `text` defines at the level of namespaces, outside nameless ones: each qualified name with its line. The sources are
// formatted, so a definition begins its line and a namespace's end has its comment.
std::vector<std::pair<std::string, std::string>> types_of(const std::string& text) {
  const std::regex opens("^(?:inline )?namespace ?([\\w:]*) ?\\{"), closes("^\\}  // namespace.*"),
      defines("^(?:template <.*> )?(?:(?:struct|class|union|enum class|enum) (\\w+(?:::\\w+)*)[^;(]*\\{|using (\\w+) = ).*");
  std::vector<std::string> spaces;
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& line : split(text, '\n')) {
    std::smatch match;
    if (std::regex_search(line, match, opens)) {
      spaces.push_back(match[1]);
    } else if (std::regex_match(line, closes) && !spaces.empty()) {
      spaces.pop_back();
    } else if (std::ranges::find(spaces, "") == spaces.end() && std::regex_match(line, match, defines)) {
      out.emplace_back(join(spaces, "::") + "::" + (match[1].matched ? match[1] : match[2]).str(), line);
    }
  }
  return out;
}

TEST(Names, TypesOfAText) {
  const std::string text =
      "namespace a {\nstruct One {\n};\nstruct Declared;\nusing Two = int;\n  struct Inner {};\nstruct One::Impl {\n};\nnamespace {\nclass "
      "Hidden {};\n"
      "}  // namespace\n}  // namespace a\nnamespace b {\nenum class One { x };\n}  // namespace b\n";
  std::vector<std::string> names;
  for (const auto& [name, line] : types_of(text)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"a::One", "a::Two", "a::One::Impl", "b::One"}));
}

TEST(Names, EveryTypeIsDefinedOnce) {
  const fs::path root = fs::path(test::tests_folder()).parent_path();
  std::map<std::string, std::pair<fs::path, std::string>> seen;  // by name: where, and the line
  for (const char* folder : {"include", "src", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
      for (const auto& [name, line] : types_of(read_file(entry.path().string()))) {
        const auto [it, first] = seen.try_emplace(name, entry.path(), line);
        const bool same_alias = line.starts_with("using") && line == it->second.second;
        EXPECT_TRUE(first || same_alias) << name << " is defined in " << it->second.first << " and in " << entry.path();
      }
    }
  }
  EXPECT_GT(seen.size(), 200U);
}

}  // namespace
}  // namespace penstock
