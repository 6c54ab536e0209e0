// SPDX-License-Identifier: Apache-2.0
#include "base/sip_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

// The example of the paper's appendix: key 00 01 .. 0f, message 00 01 .. 0e.
TEST(SipHash, ThePapersExample) {
  std::string message;
  for (char c = 0; c < 15; ++c) message += c;
  EXPECT_EQ(sip_hash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, message), 0xa129ca6149be45e5);
}

TEST(SipHash, DependsOnKeyAndEveryByte) {
  const std::string text = "seventeen letters";
  const SipKey key = sip_key("a");
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    ++other[i];
    EXPECT_NE(sip_hash(key, text), sip_hash(key, other)) << i;
  }
  EXPECT_NE(sip_hash(key, text), sip_hash(sip_key("b"), text));
  EXPECT_NE(sip_hash(key, text), sip_hash(key, text + std::string(1, '\0')));
}

}  // namespace
}  // namespace penstock
