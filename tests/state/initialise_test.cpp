// SPDX-License-Identifier: Apache-2.0
#include "state/initialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/errors.h"

namespace penstock {
namespace {

std::vector<double> draw(const std::string& name, DType dtype, std::int64_t count, std::int64_t seed) {
  const ParameterSpec spec{name, {dtype, {count}}, {Initialiser::Kind::normal, 0.5}, true};
  std::vector<std::byte> bytes(static_cast<std::size_t>(spec.type.bytes()));
  initialise(spec, seed, bytes);
  std::vector<double> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(load_element(dtype, bytes, static_cast<std::size_t>(i)));
  return out;
}

TEST(Initialise, NormalDrawsHaveMeanAndDeviation) {
  const auto draws = draw("w", DType::f64, 100001, 1);
  double sum = 0, squares = 0;
  for (double x : draws) sum += x, squares += x * x;
  const auto n = static_cast<double>(draws.size());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / n), 0.5, 0.01);
}

TEST(Initialise, DependsOnSeedAndNameAndElementOnly) {
  const auto draws = draw("w", DType::f64, 100, 1), longer = draw("w", DType::f64, 1000, 1);
  EXPECT_TRUE(std::equal(draws.begin(), draws.end(), longer.begin()));
  EXPECT_NE(draws, draw("v", DType::f64, 100, 1));
  EXPECT_NE(draws, draw("w", DType::f64, 100, 2));
  const auto single = draw("w", DType::f32, 100, 1);
  for (std::size_t i = 0; i < draws.size(); ++i) EXPECT_EQ(single[i], static_cast<double>(static_cast<float>(draws[i])));
}

TEST(Initialise, ConstantsAndWrongDtype) {
  std::vector<std::byte> bytes(16);
  initialise({"s", {DType::f32, {4}}, {Initialiser::Kind::ones, 0}, true}, 0, bytes);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(load_element(DType::f32, bytes, i), 1);
  initialise({"s", {DType::f32, {4}}, {Initialiser::Kind::zeros, 0}, true}, 0, bytes);
  EXPECT_EQ(bytes, std::vector<std::byte>(16));
  EXPECT_EQ(test::message_of([&] { initialise({"n", {DType::i32, {4}}, {Initialiser::Kind::normal, 1}, true}, 0, bytes); }),
            "n: normal draws of i32[4]");
}

// Every half: its value rounds to itself, and a value between two rounds to the nearer, ties to even.
TEST(Initialise, HalvesRoundTrip) {
  std::vector<std::byte> bytes(2), back(2);
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const auto half = static_cast<std::uint16_t>(bits);
      std::memcpy(bytes.data(), &half, 2);
      const double value = load_element(dtype, bytes, 0);
      store_element(dtype, value, back, 0);
      ASSERT_EQ(back, bytes) << bits;
      store_element(dtype, -value, back, 0);
      ASSERT_EQ(load_element(dtype, back, 0), -value);
      const auto next = static_cast<std::uint16_t>(bits + 1);
      std::memcpy(bytes.data(), &next, 2);
      const double above = load_element(dtype, bytes, 0);
      store_element(dtype, value + (above - value) / 2, back, 0);
      if (std::isfinite(above)) {
        ASSERT_EQ(load_element(dtype, back, 0), bits % 2 ? above : value) << bits;
      }
    }
  }
  store_element(DType::f16, 65519.9, back, 0);
  EXPECT_EQ(load_element(DType::f16, back, 0), 65504);
  store_element(DType::f16, 65520, back, 0);
  EXPECT_TRUE(std::isinf(load_element(DType::f16, back, 0)));
}

}  // namespace
}  // namespace penstock
