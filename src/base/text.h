// SPDX-License-Identifier: Apache-2.0
// Text helpers shared by every printer, parser and message. No fmt here: files that see
// libtorch's headers include this one too, and libtorch carries another fmt.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace penstock {

// Appends a text, a character or a number, as a stream would write it: a double with 6 digits, a bool as 0 or 1.
// It is no stream, as making one takes longer than what most callers write.
template <class Part>
void append_part(std::string& out, const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    out += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, char>) {
    out += part;
  } else {
    static_assert(std::is_arithmetic_v<Part>);
    char digits[32];
    std::to_chars_result end;
    if constexpr (std::is_floating_point_v<Part>)
      end = std::to_chars(digits, digits + sizeof digits, part, std::chars_format::general, 6);
    else
      end = std::to_chars(digits, digits + sizeof digits, +part);  // + makes a bool an int
    out.append(digits, end.ptr);
  }
}

// The parts, written one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (append_part(out, parts), ...);
  return out;
}

template <class Range, class Function>
std::string join(const Range& range, std::string_view separator, Function&& show) {
  std::string out;
  bool first = true;
  for (const auto& item : range) {
    if (!first) out += separator;
    first = false;
    out += show(item);
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Shortest text that reads back as the same double; always with '.', 'e', "inf" or "nan" in it.
std::string number(double value);
// The value with at most so many significant digits and no zeros at the end of its decimals: 12.3456 with 4 digits -> "12.35".
std::string short_decimal(double value, int digits);
// In hexadecimal, without zeros in front: 255 -> "ff".
std::string hex(std::uint64_t word);
// The text in quotes, with escapes (\" \\ \n \t \xNN).
std::string quote(std::string_view text);
// Bytes in binary units: 1536 -> "1.5 KiB".
std::string bytes_text(double bytes);
// The candidate with the smallest edit distance to `word`; empty if none is near enough to be a typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);

// Reads the whole file. Throws Error (path and the system's reason).
std::string read_file(const std::string& path);
// Writes a file so that a reader sees the old content or the new one, never a part. Throws Error.
void write_file(const std::string& path, std::string_view content);

// The whole text as a number; nothing where it is none.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

}  // namespace penstock
