// SPDX-License-Identifier: Apache-2.0
// Names of parts of snapshots: "snapshot0:w[0:512]" is what the state part "w[0:512]" was when the step of a program for generation 0
// began. It is a piece's name too, of the tensor "snapshot0:w" (piece.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// So many snapshots are kept: one is whole while the other is written.
inline constexpr int kGenerations = 2;

std::string snapshot_name(int generation, std::string_view state);

struct SnapshotPart {
  int generation = 0;
  std::string state;  // the part's name
};
// Takes such a name apart; nothing where it is none.
std::optional<SnapshotPart> parse_snapshot_name(std::string_view name);

}  // namespace penstock
