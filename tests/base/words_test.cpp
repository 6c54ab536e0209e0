// SPDX-License-Identifier: Apache-2.0
#include "base/words.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Words, OneAndMany) {
  EXPECT_EQ(counted(1, "actor"), "1 actor");
  EXPECT_EQ(counted(0, "actor"), "0 actors");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(3, "process"), "3 processes");
}

// The nearest by letters is "h200"; who writes h100 means one that begins so.
TEST(Words, ABeginIsMeantBeforeATypo) {
  const std::vector<std::string> devices = {"a100-40", "h100-pcie", "h100-sxm", "h200"};
  EXPECT_EQ(did_you_mean("h100", devices), "did you mean \"h100-pcie\" or \"h100-sxm\"?");
  EXPECT_EQ(did_you_mean("h20", devices), "did you mean \"h200\"?");
  EXPECT_EQ(did_you_mean("h2000", devices), "did you mean \"h200\"?");
  EXPECT_EQ(did_you_mean("something else", devices), "");
  EXPECT_EQ(did_you_mean("x", {}), "");
}

}  // namespace
}  // namespace penstock
