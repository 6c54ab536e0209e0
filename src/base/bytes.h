// SPDX-License-Identifier: Apache-2.0
// Sizes as users write them.
#pragma once

#include <optional>
#include <string_view>

namespace penstock {

// Bytes with or without a unit: "5e8", "16GB" (10^9 each), "512 MiB" (2^20 each), also per second: "25GB/s". Nothing where it is none.
std::optional<double> parse_bytes(std::string_view text);

}  // namespace penstock
