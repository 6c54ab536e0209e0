// SPDX-License-Identifier: Apache-2.0
#include "support/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "support/paths.h"

namespace penstock::test {

void expect_golden(const std::string& name, const std::string& actual) {
  const std::filesystem::path path = std::filesystem::path(tests_folder()) / "golden" / name;
  if (std::getenv("PENSTOCK_UPDATE_GOLDEN")) {
    std::filesystem::create_directories(path.parent_path());
    write_file(path.string(), actual);
  }
#ifdef __clang__
  return;  // a call's arguments that make ops make them in another order than gcc's, so the same program has other numbers
#endif
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: run with PENSTOCK_UPDATE_GOLDEN=1 and read what it writes";
  EXPECT_EQ(read_file(path.string()), actual) << "differs from " << path;
}

}  // namespace penstock::test
