// SPDX-License-Identifier: Apache-2.0
// The layers of the sources: a folder includes only folders below it, and libtorch stays in one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <regex>

#include "base/text.h"
#include "support/paths.h"

namespace penstock {
namespace {

std::filesystem::path repository() {
  return std::filesystem::path(test::tests_folder()).parent_path();
}

// The folders of sources, lowest first: the rows of the table in docs/architecture.md.
std::vector<std::string> documented_folders() {
  const std::regex row("^\\| `(?:src(?:/\\w+)?|include)/(\\w+)` \\|.*");
  std::vector<std::string> out;
  for (const std::string& line : split(read_file((repository() / "docs/architecture.md").string()), '\n'))
    if (std::smatch match; std::regex_match(line, match, row)) out.push_back(match[1]);
  return out;
}

struct Include {
  std::filesystem::path file;  // under the repository's root
  std::string path;            // between quotes or angle brackets
};

std::vector<Include> includes_under(const std::vector<std::string>& folders) {
  const std::filesystem::path root = repository();
  const std::regex pattern("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"]");
  std::vector<Include> out;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
      for (const std::string& line : split(read_file(entry.path().string()), '\n'))
        if (std::smatch match; std::regex_search(line, match, pattern)) out.push_back({entry.path().lexically_relative(root), match[1]});
    }
  }
  return out;
}

// In the order in which a step passes them: each includes only those before it.
constexpr std::array kWings = {"base", "step", "order", "compile", "predict", "plan", "front", "run"};

// The file is src/WING/FOLDER/..., src/base/... or include/penstock/...
std::string folder_of(const std::filesystem::path& file) {
  const auto top = std::next(file.begin());
  return (file.begin()->string() == "src" && *top != "base" ? std::next(top) : top)->string();
}

bool is_torch(const std::string& include) {
  return std::regex_search(include, std::regex("^(torch|ATen|c10|caffe2)/"));
}

TEST(Layers, AFolderIncludesOnlyFoldersBelowIt) {
  const std::vector<std::string> folders = documented_folders();
  ASSERT_EQ(folders.front(), "penstock");
  ASSERT_EQ(folders.back(), "cuda");
  const auto layer = [&](const std::string& folder) { return std::find(folders.begin(), folders.end(), folder) - folders.begin(); };
  const auto unknown = static_cast<std::ptrdiff_t>(folders.size());
  for (const Include& include : includes_under({"include", "src"})) {
    const std::string own = folder_of(include.file);
    const std::string other = include.path.substr(0, include.path.find('/'));
    ASSERT_LT(layer(own), unknown) << include.file << ": docs/architecture.md gives this folder no place in the order";
    EXPECT_TRUE(layer(other) <= layer(own) || layer(other) == unknown) << include.file << " includes " << include.path;
  }
}

TEST(Layers, AWingIncludesOnlyWingsBeforeIt) {
  std::map<std::string, std::ptrdiff_t> wing_of;  // by folder
  for (const auto& entry : std::filesystem::recursive_directory_iterator(repository() / "src")) {
    if (!entry.is_directory()) continue;
    const std::filesystem::path path = entry.path().lexically_relative(repository());
    const std::string wing = std::next(path.begin())->string();
    const auto at = std::ranges::find(kWings, wing);
    ASSERT_NE(at, kWings.end()) << wing << " is no wing";
    if (wing == "base" || std::distance(path.begin(), path.end()) == 3) wing_of[path.filename().string()] = at - kWings.begin();
  }
  for (const Include& include : includes_under({"src"})) {
    const auto other = wing_of.find(include.path.substr(0, include.path.find('/')));
    if (other == wing_of.end()) continue;
    EXPECT_LE(other->second, wing_of.at(folder_of(include.file))) << include.file << " includes " << include.path;
  }
}

TEST(Layers, OnlyTheTorchFolderAndItsDevicesIncludeLibtorch) {
  const std::filesystem::path root = repository();
  const auto may = [](const std::string& file) { return file.starts_with("src/run/torch/") || file.starts_with("src/run/cuda/"); };
  for (const Include& include : includes_under({"include", "src", "cli"})) {
    // "torch/executor.h" of ours is no header of libtorch.
    if (std::ranges::any_of(kWings, [&](const char* wing) { return std::filesystem::exists(root / "src" / wing / include.path); }))
      continue;
    EXPECT_TRUE(!is_torch(include.path) || may(include.file.string())) << include.file << " includes " << include.path;
  }
}

// libtorch brings another fmt: a header that includes one could not be read beside it.
TEST(Layers, NoHeaderIncludesFmt) {
  for (const Include& include : includes_under({"include", "src"})) {
    if (include.file.extension() != ".h") continue;
    EXPECT_FALSE(include.path.starts_with("fmt/") || include.path.starts_with("spdlog/")) << include.file << " includes " << include.path;
  }
}

}  // namespace
}  // namespace penstock
