// SPDX-License-Identifier: Apache-2.0
// The kinds of problems that `penstock batch` solves, and reading their instances.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "batch/lengths.h"
#include "penstock/schedule.h"
#include "penstock/timeline.h"

namespace penstock {

struct BatchAnswer {
  nlohmann::ordered_json values;       // an object
  std::optional<Schedule> table{};     // where the answer is one: what --csv and --show print
  std::optional<Timeline> timeline{};  // where its times are known: what --show draws instead, and --timeline writes
};

struct BatchKind {
  std::string name, summary;
  std::vector<std::string> keys;  // of the instance
  BatchAnswer (*solve)(const JsonNode& instance);
};
std::vector<BatchKind> dynapipe_kinds();
std::vector<BatchKind> flexsp_kinds();
std::vector<BatchKind> infinipipe_kinds();
std::vector<BatchKind> slice_kinds();
std::vector<BatchKind> layer_kinds();
std::vector<BatchKind> dip_kinds();
std::vector<BatchKind> lookup_kinds();
std::vector<BatchKind> searched_kinds();

// Reading instances. A key whose value is null counts as one that is not there. All throw Error with the file and the place.
bool is_given(const JsonNode& instance, const char* key);
JsonNode required(const JsonNode& instance, const char* key);
// A number that is not negative, or such a number or fraction as a text: "3349/4".
double figure(const JsonNode& node);
double figure_or(const JsonNode& instance, const char* key, double otherwise);
std::int64_t whole_or(const JsonNode& instance, const char* key, std::int64_t least, std::int64_t otherwise);
int small_whole(const JsonNode& instance, const char* key);  // from 1 to 4096
int small_whole_or(const JsonNode& instance, const char* key, int otherwise);
std::uint64_t seed_of(const JsonNode& instance);  // "seed"; left out: 0
bool flag(const JsonNode& instance, const char* key, bool otherwise = false);
std::vector<double> figures(const JsonNode& list);
std::vector<std::int64_t> wholes(const JsonNode& list, std::int64_t least);

// A whole number as such, for answers that read well: 33 instead of 33.0.
nlohmann::ordered_json exact(double value);
nlohmann::ordered_json exact(const std::vector<double>& values);

}  // namespace penstock
