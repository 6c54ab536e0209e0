// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.h"

#include <cctype>
#include <cmath>

#include "base/text.h"

namespace penstock {

std::optional<double> parse_bytes(std::string_view text) {
  constexpr std::string_view kPrefixes = "KMGTP";
  text = trim(text);
  if (text.ends_with("/s")) text.remove_suffix(2);
  const bool has_unit = text.ends_with('B') || text.ends_with('b');
  if (has_unit) text.remove_suffix(1);
  const bool binary = has_unit && text.ends_with('i');
  if (binary) text.remove_suffix(1);
  double unit = 1;
  if (!text.empty()) {
    const std::size_t power = kPrefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    if (power != std::string_view::npos) {
      unit = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
      text.remove_suffix(1);
    } else if (binary) {
      return {};
    }
  }
  const std::optional<double> number = parse_number<double>(trim(text));
  return number ? std::optional(*number * unit) : std::nullopt;
}

}  // namespace penstock
