// SPDX-License-Identifier: Apache-2.0
// Reads the instances of penstock batch.
#include <cmath>
#include <cstdlib>

#include "cli/batch.h"

namespace penstock {

bool is_given(const JsonNode& instance, const char* key) {
  return instance.has(key) && !instance.at(key).value().is_null();
}

JsonNode required(const JsonNode& instance, const char* key) {
  if (!is_given(instance, key)) instance.fail(concat("has no key ", quote(key)), "penstock batch list names the keys of each kind");
  return instance.at(key);
}

double figure(const JsonNode& node) {
  if (!node.value().is_string()) return node.number();
  const std::string& text = node.text();
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto part = [&](const std::string& digits) {
    char* end = nullptr;
    const double value = std::strtod(digits.c_str(), &end);
    const bool whole = !digits.empty() && digits.find_first_not_of("0123456789.eE+-") == std::string::npos && *end == '\0';
    return whole ? value : std::nan("");
  };
  const double value = part(text.substr(0, slash)) / (slash < text.size() ? part(text.substr(slash + 1)) : 1);
  if (!std::isfinite(value) || value < 0) node.fail(concat("is ", quote(text), "; it must be a number such as 837.25 or \"3349/4\""));
  return value;
}

double figure_or(const JsonNode& instance, const char* key, double otherwise) {
  return is_given(instance, key) ? figure(instance.at(key)) : otherwise;
}

std::int64_t whole_or(const JsonNode& instance, const char* key, std::int64_t least, std::int64_t otherwise) {
  return is_given(instance, key) ? instance.at(key).whole(least) : otherwise;
}

int small_whole(const JsonNode& instance, const char* key) {
  constexpr std::int64_t kMost = 4096;
  return static_cast<int>(required(instance, key).whole(1, kMost));
}

int small_whole_or(const JsonNode& instance, const char* key, int otherwise) {
  return is_given(instance, key) ? small_whole(instance, key) : otherwise;
}

std::uint64_t seed_of(const JsonNode& instance) {
  return static_cast<std::uint64_t>(whole_or(instance, "seed", 0, 0));
}

bool flag(const JsonNode& instance, const char* key, bool otherwise) {
  return is_given(instance, key) ? instance.at(key).flag() : otherwise;
}

std::vector<double> figures(const JsonNode& list) {
  std::vector<double> out;
  list.each_element([&](const JsonNode& node) { out.push_back(figure(node)); });
  if (out.empty()) list.fail("is empty");
  return out;
}

std::vector<std::int64_t> wholes(const JsonNode& list, std::int64_t least) {
  std::vector<std::int64_t> out;
  list.each_element([&](const JsonNode& node) { out.push_back(node.whole(least)); });
  if (out.empty()) list.fail("is empty");
  return out;
}

nlohmann::ordered_json exact(double value) {
  constexpr double kMostExact = 1e15;
  if (std::abs(value) < kMostExact && value == std::floor(value)) return static_cast<std::int64_t>(value);
  return value;
}

nlohmann::ordered_json exact(const std::vector<double>& values) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const double value : values) out.push_back(exact(value));
  return out;
}

}  // namespace penstock
