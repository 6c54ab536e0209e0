// Tables of text.
#pragma once

#include <string>
#include <vector>

namespace penstock {

// Columns two blanks apart: the first to the left, the others to the right. Every row is as long as the header.
std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

// 0.1234 -> "0.123": for people.
std::string fixed(double value, int digits);
// 1234567 -> "1.2 M".
std::string short_number(double value);

}  // namespace penstock
