// SPDX-License-Identifier: Apache-2.0
#include "program/snapshot_name.h"

#include "base/text.h"

namespace penstock {

std::string snapshot_name(int generation, std::string_view state) {
  return concat("snapshot", generation, ":", state);
}

std::optional<SnapshotPart> parse_snapshot_name(std::string_view name) {
  for (int generation = 0; generation < kGenerations; ++generation)
    if (const std::string prefix = snapshot_name(generation, ""); name.starts_with(prefix) && name.size() > prefix.size())
      return SnapshotPart{generation, std::string(name.substr(prefix.size()))};
  return std::nullopt;
}

}  // namespace penstock
