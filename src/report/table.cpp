#include "report/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/invariant.h"

namespace penstock {

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

}  // namespace penstock
