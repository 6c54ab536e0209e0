// The layers of the sources: a folder includes only folders below it, and libtorch stays in one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/text.h"

namespace penstock {
namespace {

// Lowest first.
const std::vector<std::string> kFolders = {"penstock", "base",  "ir",       "ops",  "transform", "trace", "stage",  "schedule",
                                           "program",  "lower", "simulate", "plan", "runtime",   "torch", "report", "models"};

struct Include {
  std::filesystem::path file;  // under the repository's root
  std::string path;            // between quotes or angle brackets
};

std::vector<Include> includes_under(const std::vector<std::string>& folders) {
  const std::filesystem::path root = std::filesystem::path(PENSTOCK_TESTS).parent_path();
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

// Position in kFolders; -1: not one of ours.
std::ptrdiff_t layer(const std::string& folder) {
  const auto it = std::find(kFolders.begin(), kFolders.end(), folder);
  return it == kFolders.end() ? -1 : it - kFolders.begin();
}

bool is_torch(const std::string& include) {
  return std::regex_search(include, std::regex("^(torch|ATen|c10|caffe2)/"));
}

TEST(Layers, AFolderIncludesOnlyFoldersBelowIt) {
  for (const Include& include : includes_under({"include", "src"})) {
    const std::string own = std::next(include.file.begin())->string();  // src/<folder>, include/penstock
    const std::string other = include.path.substr(0, include.path.find('/'));
    ASSERT_GE(layer(own), 0) << include.file << ": this folder has no place in the order";
    EXPECT_LE(layer(other), layer(own)) << include.file << " includes " << include.path;
  }
}

TEST(Layers, OnlyTheTorchFolderIncludesLibtorch) {
  const std::filesystem::path root = std::filesystem::path(PENSTOCK_TESTS).parent_path();
  for (const Include& include : includes_under({"include", "src", "cli"})) {
    // "torch/executor.h" of ours is no header of libtorch.
    if (std::filesystem::exists(root / "src" / include.path)) continue;
    EXPECT_TRUE(!is_torch(include.path) || include.file.string().starts_with("src/torch/")) << include.file << " includes " << include.path;
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
