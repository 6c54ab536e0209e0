// SPDX-License-Identifier: Apache-2.0
// Element types and the hash of structural hashes.
#include "penstock/types.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "base/hash.h"

namespace penstock {
namespace {

TEST(Types, NamesReadBack) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    DType back = DType::boolean;
    EXPECT_TRUE(parse_dtype(name(dtype), back));
    EXPECT_EQ(back, dtype);
    EXPECT_FALSE(is_floating(dtype) && is_integer(dtype));
  }
  DType untouched = DType::i32;
  EXPECT_FALSE(parse_dtype("f8", untouched));
  EXPECT_EQ(untouched, DType::i32);
}

TEST(Types, CountElementsAndBytes) {
  const TensorType type{DType::bf16, {2, 3, 4}};
  EXPECT_EQ(type.elements(), 24);
  EXPECT_EQ(type.bytes(), 48);
  EXPECT_EQ(type.text(), "bf16[2,3,4]");
  EXPECT_EQ((TensorType{DType::boolean, {}}).text(), "bool[]");
  EXPECT_EQ((TensorType{DType::f64, {}}).bytes(), 8);
  EXPECT_EQ((TensorType{DType::f64, {4, 0}}).elements(), 0);
}

std::uint64_t hash_of(std::initializer_list<std::string_view> parts) {
  Hash hash;
  for (std::string_view part : parts) hash.add(part);
  return hash.value();
}

TEST(Hash, SeesBorders) {
  EXPECT_NE(hash_of({"ab", "c"}), hash_of({"a", "bc"}));
  EXPECT_NE(hash_of({"a", ""}), hash_of({"a"}));
  Hash word;
  word.add(std::uint64_t{1});
  EXPECT_NE(word.value(), Hash().value());
}

}  // namespace
}  // namespace penstock
