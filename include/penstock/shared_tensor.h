// SPDX-License-Identifier: Apache-2.0
// A tensor in memory that several hold.
#pragma once

#include <cstddef>
#include <memory>

#include "penstock/types.h"

namespace penstock {

// Dense, in the host's memory, which lives as long as one of those that hold it.
struct SharedTensor {
  TensorType type;                    // says dtype and shape
  std::shared_ptr<std::byte> memory;  // its first element
};

}  // namespace penstock
