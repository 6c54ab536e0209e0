// SPDX-License-Identifier: Apache-2.0
// Names an op in messages about joint graphs.
#pragma once

#include <string>

#include "base/text.h"
#include "penstock/graph.h"

namespace penstock {

// op "aten::add.Tensor" in module "blocks.0"
inline std::string place_of(const Op& op) {
  return concat("op ", quote(op.name), op.origin.empty() ? "" : concat(" in module ", quote(op.origin)));
}

}  // namespace penstock
