// SPDX-License-Identifier: Apache-2.0
// Counter-based random draws, functions of key and index: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011).
#pragma once

#include <array>
#include <cstdint>

namespace penstock {

// Standard normal draws 2*pair and 2*pair + 1 (Box and Muller).
std::array<double, 2> normal_draws(std::uint64_t key, std::uint64_t pair);
// A draw in (0, 1).
double uniform_draw(std::uint64_t key, std::uint64_t index);

}  // namespace penstock
