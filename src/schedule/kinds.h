// What the kinds of actions have in common.
#pragma once

#include <string_view>

#include "penstock/schedule.h"

namespace penstock {

// Stages times micro-batches of the largest table: some 8 GB.
inline constexpr int kMostForwards = 1 << 27;

inline constexpr int kKindCount = static_cast<int>(Kind::RECV_B) + 1;

// The kind of that name; false where there is none.
bool parse_kind(std::string_view name, Kind& out);

// What a table must hold exactly once per stage and micro-batch.
inline bool is_compute(Kind kind) {
  return kind <= Kind::W;
}
// Lowering puts these itself.
inline bool is_transfer(Kind kind) {
  return kind >= Kind::SEND_F;
}
// Belongs to one micro-batch (UNSHARD, RESHARD, REDUCE_GRAD and U may speak of the whole step).
inline bool needs_microbatch(Kind kind) {
  return kind <= Kind::R || is_transfer(kind);
}

}  // namespace penstock
