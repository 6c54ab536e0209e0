// SPDX-License-Identifier: Apache-2.0
// Reading JSON so that every message says the file and the place: "costs.json: tasks[3].alone.median is -1; it must not be negative".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace penstock {

struct JsonFile {
  std::string name;
  std::string remake;  // how to get a good file, for hints; "": no hint
};

// Parses the whole text, but drops the member `skipped` of the outermost object. Throws Error (file:line:column) for bad syntax, a number
// that is too large, and a key that stands twice in one object.
nlohmann::json parse_json(std::string_view text, const JsonFile& file, std::string_view skipped = {});

// One value of a file and its place in it. Asking for anything that the value does not have throws Error.
class JsonNode {
 public:
  // `value` and `file` must outlive the node.
  JsonNode(const nlohmann::json& value, const JsonFile& file, std::string path = "") : value_(value), file_(file), path_(std::move(path)) {}

  [[noreturn]] void fail(const std::string& what, const std::string& hint = {}) const;

  const nlohmann::json& value() const { return value_; }
  double number() const;  // not negative
  double positive() const;
  std::int64_t whole(std::int64_t least, std::int64_t most = kMost) const;
  const std::string& text() const;
  bool flag() const;

  // Calls `read` with each element of a list, or each key and value of an object.
  template <class Read>
  void each_element(Read&& read) const {
    check_list();
    for (std::size_t i = 0; i < value_.size(); ++i) read(JsonNode(value_[i], file_, concat(path_, "[", i, "]")));
  }
  template <class Read>
  void each_member(Read&& read) const {
    check_object();
    for (const auto& [key, value] : value_.items()) read(key, JsonNode(value, file_, below(key)));
  }

  void check_list() const;
  void check_object() const;
  void check_keys(const std::vector<std::string>& known) const;  // throws unless it is an object with no other keys than these
  bool has(const char* key) const { return value_.contains(key); }
  JsonNode at(const char* key) const;

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 53;  // the largest whole number that every reader of JSON can hold

  std::string below(const std::string& key) const { return concat(path_, path_.empty() ? "" : ".", key); }

  const nlohmann::json& value_;
  const JsonFile& file_;
  std::string path_;
};

// The value as text, shortened to fit into a message.
std::string shown(const nlohmann::json& value);

}  // namespace penstock
