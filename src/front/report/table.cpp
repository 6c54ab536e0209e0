// SPDX-License-Identifier: Apache-2.0
#include "report/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/invariant.h"

namespace penstock {
namespace {

// The number of bytes of the printable UTF-8 character (RFC 3629) at the begin; 0 if there is none.
std::size_t character_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return first == '\n' || first == '\t' || (first >= 0x20 && first != 0x7f) ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((at(i) & 0xc0) != 0x80) return 0;
  // Refused: encodings longer than needed, surrogates, codes beyond the last character, and the control characters after ASCII.
  const bool wrong = (first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) >= 0xa0) || (first == 0xf0 && at(1) < 0x90) ||
                     (first == 0xf4 && at(1) >= 0x90) || (first == 0xc2 && at(1) < 0xa0);
  return wrong ? 0 : length;
}

}  // namespace

std::string table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::string& cell : header) widths.push_back(cell.size());
  for (const auto& row : rows) {
    invariant(row.size() == header.size(), "a table's rows are as long as its header");
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string out;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      out += i == 0 ? row[i] + fill : "  " + fill + row[i];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line(header);
  for (const auto& row : rows) out += line(row);
  return out;
}

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string short_number(double value) {
  const char* units[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  while (std::abs(value) >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return fixed(value, unit == 0 ? 0 : 1) + units[unit];
}

std::string printable(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t length = character_length(bytes);
    if (length > 0) {
      out += bytes.substr(0, length);
    } else {
      out += "\xef\xbf\xbd";
    }
    bytes.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace penstock
