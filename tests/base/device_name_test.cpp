// SPDX-License-Identifier: Apache-2.0
#include "base/device_name.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(DeviceNames, KindsAndCards) {
  for (const std::string& kind : device_kinds()) {
    const std::optional<DeviceName> name = parse_device_name(kind);
    ASSERT_TRUE(name) << kind;
    EXPECT_EQ(name->kind, kind);
    EXPECT_FALSE(name->index);
  }
  EXPECT_EQ(parse_device_name("cuda:0")->index, 0);
  EXPECT_EQ(parse_device_name("cuda:12")->index, 12);
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1 ", "cuda:128",
                            "cuda:99999999999999999999", "cpu:0", "standin:1", ":1", "CUDA"})
    EXPECT_FALSE(parse_device_name(wrong)) << wrong;
}

TEST(DeviceNames, OneIsTheHost) {
  for (const std::string& kind : device_kinds()) EXPECT_EQ(is_host(kind), kind == "cpu") << kind;
  for (const char* other : {"cuda:1", "gpu", ""}) EXPECT_FALSE(is_host(other)) << other;
}

}  // namespace
}  // namespace penstock
