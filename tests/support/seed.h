// SPDX-License-Identifier: Apache-2.0
// Which inputs a test draws.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace penstock::test {

// `make soak`: long forms of what is drawn.
inline bool is_soak() {
  return std::getenv("PENSTOCK_SOAK") != nullptr;
}

// `usual`, so that a test says the same each time; PENSTOCK_SEED's where it is set, and another each time in `make soak`. Tests print it.
inline std::uint64_t drawn_seed(std::uint64_t usual = 1) {
  if (const char* const given = std::getenv("PENSTOCK_SEED")) return std::strtoull(given, nullptr, 10);
  return is_soak() ? std::random_device{}() : usual;
}

}  // namespace penstock::test
