// SPDX-License-Identifier: Apache-2.0
// Symbols that stand for values: hashes of how a value came to be. Equal symbols mean equal values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace penstock::checks {

using Symbol = std::uint64_t;

// Keeps symbols of different kinds from being equal.
enum class Origin : std::uint64_t { state, input, op, sum, collective, moved, elements };

template <class... Words>
Symbol mix(Origin origin, Words... words) {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(origin));
  (hash.add(static_cast<std::uint64_t>(words)), ...);
  return hash.value();
}

}  // namespace penstock::checks
