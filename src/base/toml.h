// SPDX-License-Identifier: Apache-2.0
// Reading TOML with toml++, with checks for the bad input that it mishandles.
#pragma once

// toml++ 3.3 asserts things about its input that are not always so ("[!]"). Those assertions throw, as a user's mistake must not end the
// process.
namespace penstock {
[[noreturn]] void fail_toml_assertion();
}  // namespace penstock

#define TOML_ASSERT(condition) ((condition) ? void() : penstock::fail_toml_assertion())
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/amount.h"

namespace penstock {

// "run.toml:3:1: ", the beginning of messages about a key or value.
std::string place_text(std::string_view file, const toml::source_region& region);

// Throws Error with file:line:column.
toml::table parse_toml(std::string_view text, std::string_view file);

// Throws Error with all known keys and the nearest of them.
[[noreturn]] void fail_unknown_key(const std::string& what, const std::string& found, const std::vector<std::string>& known);

// One table of a file, with the name that messages call it by: "h100-sxm" of [devices]. It keeps references to its arguments. Its functions
// throw Error with file:line:column.
class Section {
 public:
  Section(const toml::table& table, std::string name, std::string_view file) : table_(table), name_(std::move(name)), file_(file) {}

  const std::string& name() const { return name_; }
  std::string place() const { return place_text(file_, table_.source()); }
  std::string place(const char* key) const { return place_text(file_, at(key).source()); }
  bool has(const char* key) const { return table_.contains(key); }

  void check_keys(const std::vector<std::string>& known) const;
  // A positive number, from 1e-30 to 1e30 in the file's unit; or a text that says its own unit, where `unit` is of a quantity.
  double number(const char* key, FileUnit unit) const;
  double number_or_zero(const char* key, FileUnit unit) const;
  double number_or(const char* key, FileUnit unit, double otherwise) const { return has(key) ? number(key, unit) : otherwise; }
  // A whole number from `least` to a million.
  int whole(const char* key, int least) const;
  std::string text(const char* key) const;
  const toml::node& at(const char* key) const;

 private:
  const toml::table& table_;
  std::string name_;
  std::string_view file_;
};

}  // namespace penstock
