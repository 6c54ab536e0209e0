// SPDX-License-Identifier: Apache-2.0
// A TOML file and overrides assign values to the keys of a configuration. Here unknown keys, types, ranges and words are checked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/toml.h"
#include "config/config.h"
#include "config/config_keys.h"

namespace penstock {

// One assignment of a value to a key, from the file or the command line.
struct Assignment {
  std::string section, name;
  const toml::node* value = nullptr;
  std::string key_place, value_place;  // where each was written: "run.toml:3:1: ", "--set: "
};

// Returns the assignments of the document, which must outlive them. Throws Error for a section that there is not, and for a key outside of
// one.
std::vector<Assignment> assignments_of(const toml::table& document, std::string_view file);
// The whole name of a key: "steps" -> "train.steps", where only one section has it. Throws Error where none or several have it.
std::string full_key(const Override& override, const std::vector<ConfigKey>& keys);
// The value as the TOML document `x = value`.
toml::table override_document(const Override& override, const ConfigKey& key);

// Puts the value into the key's target. Throws Error for a value of another type, out of the key's range or none of its words.
void assign(const ConfigKey& key, const Assignment& assignment);
// The same of each, in turn, to the key of its name. Throws Error beside for a key that there is not, with the nearest.
void assign_all(const std::vector<Assignment>& assignments, const std::vector<ConfigKey>& keys, const std::string& model);

// The error for a name that is none of the known ones: "unknown axis ...", with the nearest or all of them.
[[noreturn]] void fail_unknown(const std::string& place, const char* what, const std::string& found, const std::vector<std::string>& known);

}  // namespace penstock
