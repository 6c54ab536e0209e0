// SPDX-License-Identifier: Apache-2.0
// Distinguishes text from files of other kinds.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace penstock {

// The number of bytes at a file's begin that the check looks at.
inline constexpr std::size_t kTextProbe = 8192;

// Why a file with this begin is no text ("it is a safetensors file", "it has zero bytes"); "" where it may be text, in any encoding that
// includes ASCII.
std::string why_no_text(std::span<const std::byte> begin);

}  // namespace penstock
