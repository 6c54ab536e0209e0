// SPDX-License-Identifier: Apache-2.0
#include "base/amount.h"

#include <cctype>
#include <cmath>
#include <string>
#include <utility>

#include "base/text.h"

namespace penstock {
namespace {

// "16GB" as 16 and "GB".
std::pair<std::optional<double>, std::string_view> number_and_unit(std::string_view text) {
  text = trim(text);
  std::size_t end = text.size();
  while (end > 0 && (std::isalpha(static_cast<unsigned char>(text[end - 1])) != 0 || text[end - 1] == '/')) --end;
  if (const std::optional<double> plain = parse_number<double>(text)) return {plain, {}};  // "inf" too
  return {parse_number<double>(trim(text.substr(0, end))), text.substr(end)};
}

// The factor that the beginning of the unit says, K to P, and what of it is left: "GB" as 10^9 and "B".
std::pair<double, std::string_view> prefix_of(std::string_view unit) {
  constexpr std::string_view kPrefixes = "KMGTP";
  const std::size_t power = unit.empty() ? std::string_view::npos : kPrefixes.find(static_cast<char>(std::toupper(unit[0])));
  if (power == std::string_view::npos) return {1, unit};
  const bool is_binary = unit.size() > 1 && unit[1] == 'i';
  return {std::pow(is_binary ? 1024.0 : 1000.0, static_cast<double>(power + 1)), unit.substr(is_binary ? 2 : 1)};
}

std::optional<double> bytes_of(std::string_view unit) {
  const auto [factor, rest] = prefix_of(unit);
  const bool is_binary = unit.size() > 1 && unit[1] == 'i';
  if (rest == "B" || rest == "b" || (rest.empty() && !unit.empty() && !is_binary)) return factor;
  return {};
}

std::optional<double> bytes_per_second_of(std::string_view unit) {
  const auto [factor, rest] = prefix_of(unit);
  if (rest == "bit/s" || rest == "bps") return factor / 8;
  if (unit.ends_with("b/s") || unit.ends_with('b')) return {};
  return bytes_of(unit.ends_with("/s") ? unit.substr(0, unit.size() - 2) : unit);
}

std::optional<double> seconds_of(std::string_view unit) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}};
  for (const auto& [name, seconds] : kUnits)
    if (unit == name) return seconds;
  return {};
}

std::optional<double> size_of(std::string_view unit, Quantity quantity) {
  if (quantity == Quantity::seconds) return seconds_of(unit);
  return quantity == Quantity::bytes ? bytes_of(unit) : bytes_per_second_of(unit);
}

}  // namespace

std::optional<Amount> parse_amount(std::string_view text, Quantity quantity) {
  const auto [number, unit] = number_and_unit(text);
  if (!number) return {};
  if (unit.empty()) return Amount{*number, false};
  const std::optional<double> size = size_of(unit, quantity);
  return size ? std::optional(Amount{*number * *size, true}) : std::nullopt;
}

const char* examples_of(Quantity quantity) {
  if (quantity == Quantity::seconds) return "5us or 2s";
  return quantity == Quantity::bytes ? "16GB or 512MiB" : "25GB/s or 200Gbit/s";
}

}  // namespace penstock
