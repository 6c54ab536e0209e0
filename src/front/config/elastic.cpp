// SPDX-License-Identifier: Apache-2.0
#include "config/elastic.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/words.h"

namespace penstock {
namespace {

// So many groups over the actors, no actor having more than `most`; those that get one more are the first, or the last.
std::vector<int> spread(int groups, int actors, int most, bool last) {
  groups = std::min(groups, actors * most);
  std::vector<int> out(static_cast<std::size_t>(actors), groups / actors);
  const auto more = static_cast<std::ptrdiff_t>(groups % actors);
  for (auto it = last ? out.end() - more : out.begin(), end = last ? out.end() : out.begin() + more; it != end; ++it) ++*it;
  return out;
}

}  // namespace

std::vector<RunLayout> layouts_on(const Config& config, int devices) {
  if (!config.pipeline.plan.empty() || !config.pipeline.workers.empty()) return {{config, {}}};
  const int each = devices_of_actor(config), members = devices_with_members(config) / each, actors = config.pipeline.table.actors;
  const int groups = devices / members;
  if (groups >= actors * each) return {{config, std::vector<int>(static_cast<std::size_t>(actors), each)}};
  std::vector<RunLayout> out;
  for (int a = std::min(actors, groups); a > 0; --a) {
    Config fewer = config;
    fewer.pipeline.table.actors = a;
    out.push_back({fewer, spread(groups, a, each, false)});
    if (out.back().groups.front() != out.back().groups.back()) out.push_back({fewer, spread(groups, a, each, true)});
  }
  return out;
}

Prepared prepare(const RunLayout& layout, const ModelRegistry& models) {
  if (layout.groups.empty()) return prepare(layout.config, models);
  Config config = layout.config;
  config.pipeline.data = *std::ranges::max_element(layout.groups);
  config.pipeline.program.local = 1;
  Prepared prepared = prepare(config, models);
  if (prepared.options.devices == layout.groups) return prepared;
  prepared.options.devices = layout.groups;
  choose_sizes(config, prepared);
  return prepared;
}

std::string text_of(const RunLayout& layout) {
  if (layout.groups.empty()) return "it is configured";
  const bool alike = layout.groups.front() == layout.groups.back();
  return concat(counted(std::ssize(layout.groups), "actor"), " of ",
                alike ? std::to_string(layout.groups[0]) : join(layout.groups, ", ", [](int n) { return std::to_string(n); }),
                alike && layout.groups[0] == 1 ? " device" : " devices");
}

}  // namespace penstock
