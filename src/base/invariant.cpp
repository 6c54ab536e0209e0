// SPDX-License-Identifier: Apache-2.0
#include "base/invariant.h"

#include <cstdio>
#include <cstdlib>

namespace penstock {

void invariant(bool condition, std::string_view what, std::source_location where) {
  if (condition) return;
  std::fprintf(stderr, "%s:%u: %.*s [this is a bug in Penstock]\n", where.file_name(), static_cast<unsigned>(where.line()),
               static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace penstock
