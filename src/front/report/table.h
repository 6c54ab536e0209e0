// SPDX-License-Identifier: Apache-2.0
// Tables of text, and numbers and bytes for people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The table has two blanks between columns; the first column is aligned left, the others right. Every row is as long as the header.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

// A number with so many decimals: 0.1234 -> "0.123".
std::string fixed(double value, int digits);
// Bytes that a model made, as text for people: invalid UTF-8 and control characters other than newline and tab become U+FFFD.
std::string printable(std::string_view bytes);
// A number shortened with a unit: 1234567 -> "1.2 M".
std::string short_number(double value);

}  // namespace penstock
