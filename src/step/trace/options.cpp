// SPDX-License-Identifier: Apache-2.0
// The functions with which a model reads the [model] table of a configuration.
#include <cmath>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/trace.h"

namespace penstock {

namespace {

template <class T>
const T& find(const std::map<std::string, T>& options, const std::string& key) {
  if (const auto found = options.find(key); found != options.end()) return found->second;
  std::vector<std::string> keys;
  for (const auto& option : options) keys.push_back(option.first);
  throw Error(concat("the model has no option ", quote(key)), {}, did_you_mean(key, keys));
}

}  // namespace

double ModelOptions::number(const std::string& key) const {
  return find(numbers, key);
}

std::int64_t ModelOptions::size(const std::string& key) const {
  const double value = number(key);
  if (!(value >= 1 && value <= 1e9) || value != std::floor(value)) {
    throw Error(concat("model option ", quote(key), " is ", penstock::number(value)), {}, "give a whole number from 1 on");
  }
  return static_cast<std::int64_t>(value);
}

const std::string& ModelOptions::word(const std::string& key) const {
  return find(words, key);
}

}  // namespace penstock
