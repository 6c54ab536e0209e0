// SPDX-License-Identifier: Apache-2.0
#include "config/config_text.h"

#include <algorithm>

#include "base/text.h"
#include "config/config_keys.h"

namespace penstock {

std::vector<KeyLine> key_lines(const Config& config, const ModelRegistry& models) {
  Config copy = config, defaults;  // a copy because keys point into a configuration that they may change
  const ModelEntry& model = models.at(config.model.name);
  defaults.model = {config.model.name, model.numbers, model.words};
  defaults.axis_names = config.axis_names;
  defaults.layout = usual_layout(defaults);
  for (std::string& axis : defaults.pipeline.axes) axis = axis_named(defaults, axis);
  for (const auto& [dim, axis] : config.layout) defaults.layout.try_emplace(dim);  // without a default a dim is whole
  for (const auto& [stage, dims] : config.stage_layout)
    for (const auto& [dim, axis] : dims) {
      const auto of_all = config.layout.find(dim);
      defaults.stage_layout[stage][dim] = of_all == config.layout.end() ? "" : of_all->second;
    }
  const std::vector<ConfigKey> keys = all_keys(copy), without = all_keys(defaults);
  for (auto& [name, axis] : defaults.axis_names) axis.clear();  // without the key an axis has no other name
  std::vector<KeyLine> out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const ConfigKey& key = keys[i];
    out.push_back(
        {key.section, key.name, key.unit, key.meaning, value_text(key), value_text(without[i]), config.given.contains(key.path())});
  }
  out.front().fallback = value_text(fixed_keys(defaults = {}).front());  // the model's name
  return out;
}

std::string explained(const Config& config, const ModelRegistry& models) {
  constexpr std::size_t kMostAligned = 28;  // the most characters of a setting whose comment is aligned with the others'
  const std::vector<KeyLine> lines = key_lines(config, models);
  const auto setting = [](const KeyLine& line) { return concat(toml_name(line.name), " = ", line.value); };
  std::size_t column = 0;
  for (const KeyLine& line : lines)
    if (setting(line).size() <= kMostAligned) column = std::max(column, setting(line).size());
  std::string out, section;
  for (const KeyLine& line : lines) {
    if (line.section != section) {
      out += concat(section.empty() ? "" : "\n", "[", toml_section(line.section), "]\n");
      section = line.section;
    }
    const std::string set = setting(line);
    const std::string what = line.unit.empty() ? line.meaning : concat(line.unit, " ", line.meaning);
    out += concat(set, std::string(column - std::min(column, set.size()), ' '), "  # ", what, " [", line.fallback, "]\n");
  }
  return out;
}

}  // namespace penstock
