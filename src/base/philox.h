// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxFactor0 = 0xD2511F53, kPhiloxFactor1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxKey0 = 0x9E3779B9, kPhiloxKey1 = 0xBB67AE85;

using PhiloxBlock = std::array<std::uint32_t, 4>;

// The random block at counter (low, high), 64 bits each, under `key`.
PhiloxBlock philox(std::uint64_t low, std::uint64_t high, std::uint64_t key);

}  // namespace penstock
