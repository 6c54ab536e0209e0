// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"

namespace penstock::test {

std::string tests_folder() {
  return PENSTOCK_TESTS;
}
std::string profiles_folder() {
  return PENSTOCK_PROFILES;
}
std::string python_with_torch() {
  return PENSTOCK_PYTHON;
}

}  // namespace penstock::test
