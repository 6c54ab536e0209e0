// SPDX-License-Identifier: Apache-2.0
// Properties that several kinds of actions have in common.
#pragma once

#include <cstddef>
#include <string_view>

#include "penstock/schedule.h"

namespace penstock {

// Stages times micro-batches of the largest table: some 8 GB.
inline constexpr int kMostForwards = 1 << 27;

inline constexpr int kKindCount = static_cast<int>(Kind::RECV_B) + 1;

// The kind of that name; false where there is none.
bool parse_kind(std::string_view name, Kind& out);

// Whether a table must hold the kind exactly once per stage and micro-batch.
inline bool is_compute(Kind kind) {
  return kind <= Kind::W;
}
// Starts a transfer at one of its ends.
inline bool is_transfer(Kind kind) {
  return kind >= Kind::SEND_F;
}
inline bool is_send(Kind kind) {
  return kind == Kind::SEND_F || kind == Kind::SEND_B;
}
// Its place among the four kinds of transfers.
inline std::size_t transfer_place(Kind kind) {
  return static_cast<std::size_t>(kind) - static_cast<std::size_t>(Kind::SEND_F);
}
// Parameters or gradients of a stage on an actor: of no micro-batch.
inline bool is_sharding(Kind kind) {
  return kind == Kind::UNSHARD || kind == Kind::RESHARD || kind == Kind::REDUCE_GRAD;
}
// Belongs to one micro-batch (U may speak of the whole step).
inline bool needs_microbatch(Kind kind) {
  return kind != Kind::U && !is_sharding(kind);
}
// Computes with the parameters of its stage.
inline bool reads_parameters(Kind kind) {
  return is_compute(kind) || kind == Kind::R;
}
// Whether the kind works on residuals between F and its backward, on the actor that has them.
inline bool is_residual(Kind kind) {
  return kind == Kind::R || kind == Kind::OFFLOAD || kind == Kind::RELOAD;
}
// Moves between device and host memory: one at a time on an actor, beside its compute.
inline bool is_host_copy(Kind kind) {
  return kind == Kind::OFFLOAD || kind == Kind::RELOAD;
}
// Takes the actor's place among those that share parameters: one at a time, beside its compute. (RESHARD only forgets.)
inline bool is_collective(Kind kind) {
  return kind == Kind::UNSHARD || kind == Kind::REDUCE_GRAD;
}

}  // namespace penstock
