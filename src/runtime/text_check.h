// Tells text from files of other kinds.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace penstock {

// How many bytes of a file's begin it takes to tell.
inline constexpr std::size_t kTextProbe = 8192;

// Why a file that begins so is no text ("it is a safetensors file", "it has zero bytes"); "" where it may be some, in any encoding that
// has ASCII in it.
std::string why_no_text(std::span<const std::byte> begin);

}  // namespace penstock
