// Tables of text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Columns two blanks apart: the first to the left, the others to the right. Every row is as long as the header.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

// 0.1234 -> "0.123": for people.
std::string fixed(double value, int digits);
// Bytes that a model made, as text for people: what is not valid UTF-8, and control characters but newline and tab, become U+FFFD.
std::string printable(std::string_view bytes);
// 1234567 -> "1.2 M".
std::string short_number(double value);

}  // namespace penstock
