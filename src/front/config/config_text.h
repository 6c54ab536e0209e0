// SPDX-License-Identifier: Apache-2.0
// A configuration as text for people, as `penstock config` prints it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace penstock {

// One key with its value.
struct KeyLine {
  std::string section, name, unit, meaning;
  std::string value, fallback;  // as TOML, which is JSON too; `fallback` is the default
  bool given = false;           // whether a file, an override or a plan gave it; else it is the default, or follows from a table
};
std::vector<KeyLine> key_lines(const Config& config, const ModelRegistry& models);

// TOML that parse_config reads back; each key is followed by its meaning, unit and default.
std::string explained(const Config& config, const ModelRegistry& models);

}  // namespace penstock
