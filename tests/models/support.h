// SPDX-License-Identifier: Apache-2.0
// Small models for tests.
#pragma once

#include "models/registry.h"

namespace penstock::test {

inline std::unique_ptr<Model> model(const std::string& name, std::map<std::string, double> numbers = {}, int stages = 1,
                                    DType compute = DType::f32) {
  return make_model(builtin_models(), name, {.numbers = std::move(numbers), .words = {}, .stages = stages, .compute = compute});
}

}  // namespace penstock::test
