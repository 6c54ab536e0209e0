// SPDX-License-Identifier: Apache-2.0
// Every reader of a text form keeps these promises, whatever the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/invariant.h"
#include "penstock/error.h"

namespace penstock::fuzz {

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The thing read, or none if the reader throws Error; what it prints, the reader takes and prints again. Any other exception ends the run.
template <class Parse, class Print>
auto read_back(std::string_view text, const Parse& parse, const Print& print) -> std::optional<decltype(parse(text))> {
  std::optional<decltype(parse(text))> thing;
  try {
    thing = parse(text);
  } catch (const Error&) {
    return std::nullopt;
  }
  const std::string printed = print(*thing);
  invariant(print(parse(printed)) == printed, "print(parse(print(x))) differs from print(x)");
  return thing;
}

}  // namespace penstock::fuzz
