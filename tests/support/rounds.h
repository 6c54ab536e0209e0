// SPDX-License-Identifier: Apache-2.0
// How many inputs a test draws.
#pragma once

#include <cstdlib>

namespace penstock::test {

// `all` of them, or the part that PENSTOCK_ROUNDS says: a tenth under sanitizers, where drawing more of the same inputs as elsewhere shows
// little.
template <typename Count>
Count rounds(Count all) {
  static const char* const part = std::getenv("PENSTOCK_ROUNDS");
  const auto some = static_cast<Count>(static_cast<double>(all) * (part ? std::atof(part) : 1));
  return some < 1 ? Count{1} : some;
}

}  // namespace penstock::test
