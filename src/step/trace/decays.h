// SPDX-License-Identifier: Apache-2.0
// The ways in which a learning rate falls (train.decay): a list with a row for each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/trace.h"

namespace penstock {

struct DecayInfo {
  std::string name;
  // The share of the learning rate that is left where `progress` of the fall is over: 1 at 0, `last` at 1. null: the rate does not fall.
  Tensor (*left)(Tensor progress, double last) = nullptr;
  bool late = false;   // it falls at the end, unless the number of steps is said, and not from the warm-up on
  bool given = false;  // each step reads its rates, so no configuration names it

  bool falls() const { return left != nullptr; }
};
const std::vector<DecayInfo>& decays();  // the first is the default
// The one of that name. Throws Error for an unknown name (nearest named).
const DecayInfo& find_decay(std::string_view name);

}  // namespace penstock
