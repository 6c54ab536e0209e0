// SPDX-License-Identifier: Apache-2.0
// Pictures as PNG files.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace penstock {

// The file's content: rows of pixels from the top, three bytes each (red, green, blue), stored without compression.
std::string png(std::int64_t width, std::int64_t height, std::span<const std::uint8_t> pixels);

}  // namespace penstock
