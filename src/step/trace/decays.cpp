// SPDX-License-Identifier: Apache-2.0
#include "trace/decays.h"

#include <algorithm>
#include <numbers>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/ops.h"

namespace penstock {
namespace {

Tensor cosine(Tensor progress, double last) {
  return (1 - last) / 2 * (cos(progress * std::numbers::pi) + 1) + last;
}

Tensor straight(Tensor progress, double last) {
  return progress * (last - 1) + 1;
}

}  // namespace

const std::vector<DecayInfo>& decays() {
  static const std::vector<DecayInfo> all = {
      {"cosine", cosine}, {"linear", straight}, {"wsd", straight, /*late=*/true}, {"constant"}, {.name = "given", .given = true},
  };
  return all;
}

const DecayInfo& find_decay(std::string_view name) {
  std::vector<std::string> names;
  for (const DecayInfo& row : decays()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  throw Error(concat("the learning rate has no decay ", quote(name)), {concat("there are ", join(names, ", "))}, did_you_mean(name, names));
}

}  // namespace penstock
