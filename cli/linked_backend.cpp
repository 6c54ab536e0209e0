// SPDX-License-Identifier: Apache-2.0
#include "cli/backend.h"

namespace penstock {

const Backend& backend() {
  return torch_backend();
}

std::future<void> load_backend() {
  return {};
}

}  // namespace penstock
