// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <utility>

#include "base/durable.h"
#include "base/regular_file.h"
#include "penstock/error.h"

namespace penstock {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return join(parts, separator, [](const std::string& part) { return part; });
}

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string out(buffer, static_cast<std::size_t>(end - buffer));
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string hex(std::uint64_t word) {
  char digits[16];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, word, 16).ptr);
}

std::string short_decimal(double value, int digits) {
  const int whole = value == 0 ? 1 : 1 + static_cast<int>(std::floor(std::log10(std::abs(value))));
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, "%.*f", std::clamp(digits - whole, 0, digits + 2), value);
  std::string out = buffer;
  if (out.find('.') == std::string::npos) return out;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += hex;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return buffer;
}

namespace {

// Letters that are added, left out or replaced, or change places with the next one.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);  // of the beginnings of a with two letters less, one less, and this one
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;  // two thirds of a word are right where it is a typo
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    out.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

std::string read_file(const std::string& path) {
  const RegularFile file(path);
  std::string out;
  // The buffer is one byte larger than the file, so that the last read finds the end.
  for (std::size_t room = file.bytes + 1;; room = 4096) {
    const std::size_t size = out.size();
    out.resize(size + room);
    const ssize_t got = ::read(file.fd, out.data() + size, room);
    if (got < 0 && errno != EINTR) throw CannotRead(path, errno);
    out.resize(size + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return out;
  }
}

void write_file(const std::string& path, std::string_view content) {
  // A pipe or a device is written to: no file takes its place. Links are not followed to one.
  std::error_code none;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, none);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status)) {
    std::ofstream stream(path, std::ios::binary);
    if (!(stream << content << std::flush)) throw Error(concat("cannot write ", path, ": ", std::strerror(errno)));
    return;
  }
  DurableFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

}  // namespace penstock
