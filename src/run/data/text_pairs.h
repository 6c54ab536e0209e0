// Real texts with what is said of them, as they lie on a machine that has no network: sets of pairs to train on, whose lengths differ by a
// factor of a hundred.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

struct TextPair {
  std::string input, target;
};

// Functions and methods of a Python source that have a docstring: the source without it, moved to the left, and its first paragraph in one
// line. The source is scanned, not run; what is no Python gives whatever looks like it.
std::vector<TextPair> python_functions(std::string_view source);
// Declarations of a C++ header behind a documenting comment (/** or ///): the declaration in one line, without a body, and the comment's
// brief description, which is its first paragraph where it has no @brief.
std::vector<TextPair> cpp_declarations(std::string_view header);
// A manual page in roff (the macros of man(7) or mdoc(7)): its text without marks behind section NAME, and the description in that
// section. None for a page that only names another, or has neither.
std::optional<TextPair> manual_page(std::string_view roff);

// A kind of such a set, and where it is found.
struct PairKind {
  std::string name, summary;
  std::vector<std::string> (*folders)();            // of this machine; empty: it has none
  bool (*is_one)(const std::string& path);          // whether this file is read
  std::vector<TextPair> (*read)(std::string_view);  // the pairs of a file
};
std::vector<PairKind> pair_kinds();

// The pairs of all files of the folders, in the order of their names. Files that gzip packed are unpacked. Pairs without an input or target
// are left out. Throws Error: an unreadable file, or no pairs at all.
std::vector<TextPair> collect_pairs(const PairKind& kind, const std::vector<std::string>& folders);

}  // namespace penstock
