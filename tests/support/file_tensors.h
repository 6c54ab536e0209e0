// SPDX-License-Identifier: Apache-2.0
// Tensors in files, read whole.
#pragma once

#include <cstddef>
#include <vector>

#include "formats/safetensors.h"

namespace penstock::test {

inline std::vector<std::byte> bytes_of(const FileTensor& tensor) {
  std::vector<std::byte> out(static_cast<std::size_t>(tensor.type.bytes()));
  tensor.read(0, out);
  return out;
}

}  // namespace penstock::test
