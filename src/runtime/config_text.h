// A configuration for people: what `penstock config` prints.
#pragma once

#include <string>
#include <vector>

#include "runtime/config.h"

namespace penstock {

// One key as it is.
struct KeyLine {
  std::string section, name, unit, meaning;
  std::string value, fallback;  // as TOML, which is JSON too; the second is the default
  bool given = false;           // by a file, an override or a plan: else it is the default, or follows from a table
};
std::vector<KeyLine> key_lines(const Config& config, const ModelRegistry& models);

// TOML that parse_config reads back, every key with what it means, its unit and its default behind it.
std::string explained(const Config& config, const ModelRegistry& models);

}  // namespace penstock
