// SPDX-License-Identifier: Apache-2.0
// Planning of whole configurations over the models that come along, for tests that say what a step takes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/registry.h"
#include "profile/variants.h"

namespace penstock::test {

inline const ModelRegistry& models() {
  static const ModelRegistry all = builtin_models();
  return all;
}

// The configuration with these keys ("layers=2"), then those.
inline Config loaded(const std::vector<std::string>& base, const Settings& settings = {}) {
  Settings all;
  for (const std::string& one : base) all.push_back(parse_override(one));
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("", all, models());
}

using Predicting = std::function<Prediction(const ConfigVariant&, const Prepared&, Program&)>;

// Planning of variants of the configuration with these keys.
inline VariantPlanning planning(const std::vector<std::string>& base, Predicting predict) {
  return {.load = [base](const Settings& settings) { return loaded(base, settings); }, .models = &models(), .predict = std::move(predict)};
}

}  // namespace penstock::test
