// SPDX-License-Identifier: Apache-2.0
// The one table of a configuration's keys. Parsing, messages, `penstock config` and a run's config.toml all read it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace penstock {

struct ConfigKey {
  // A value that one of the key's words says: an enumeration's, or false and true. Both count its place among the words.
  struct Choice {
    std::function<std::size_t()> chosen;
    std::function<void(std::size_t)> choose;
  };
  using Target = std::variant<std::int64_t*, int*, double*, bool*, std::string*, Choice, std::vector<std::string>*, std::vector<double>*,
                              std::vector<std::vector<double>>*>;

  std::string section, name;
  std::string unit, meaning;  // unit: "steps", or "" where it has none
  Target target;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  std::vector<std::string> words = {};  // the only texts allowed; empty: any
  bool is_below = false;                // whether `most` itself is too much
  // Says what is allowed beside the words, and has their form; null: nothing is.
  bool (*is_like_words)(const std::string&) = nullptr;
  // Whether an override names it by its whole path only, as its name alone is a model's: "layout.heads", "pipeline.context".
  bool by_path = false;

  std::string path() const { return section + "." + name; }
  bool is_layout() const { return section.starts_with("layout"); }  // [layout], or a stage's own [layout.STAGE]
};

// The keys without the model's own, and all keys, both in the order in which they are printed. They point into `config`.
std::vector<ConfigKey> fixed_keys(Config& config);
std::vector<ConfigKey> axis_name_keys(Config& config);  // those of [axes]
std::vector<ConfigKey> all_keys(Config& config);

// The name as TOML: quoted where it is no bare key.
std::string toml_name(std::string_view name);
std::string toml_section(std::string_view section);
// The value as TOML, which is JSON too.
std::string value_text(const ConfigKey& key);

// The whole name, "train.learning_rate", for "learning_rate", "learning-rate" or itself, also for a model's own keys; "" where there is no
// such key.
std::string key_named(std::string name, const ModelRegistry& models);

}  // namespace penstock
