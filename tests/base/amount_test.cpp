// SPDX-License-Identifier: Apache-2.0
#include "base/amount.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace penstock {
namespace {

constexpr Quantity kBytes = Quantity::bytes, kRate = Quantity::bytes_per_second, kTime = Quantity::seconds;

void expect_amount(const char* text, Quantity quantity, double value, bool has_unit) {
  const std::optional<Amount> amount = parse_amount(text, quantity);
  ASSERT_TRUE(amount) << text;
  EXPECT_DOUBLE_EQ(amount->value, value) << text;
  EXPECT_EQ(amount->has_unit, has_unit) << text;
}

TEST(Amount, HasAUnitOrNone) {
  for (const Quantity quantity : {kBytes, kRate, kTime}) {
    expect_amount("5e8", quantity, 5e8, false);
    expect_amount(" 0.5 ", quantity, 0.5, false);
    expect_amount("-1", quantity, -1, false);
    expect_amount("inf", quantity, std::numeric_limits<double>::infinity(), false);
  }
  expect_amount("16GB", kBytes, 16e9, true);
  expect_amount("16g", kBytes, 16e9, true);
  expect_amount("512 MiB", kBytes, 512.0 * 1024 * 1024, true);
  expect_amount("100B", kBytes, 100, true);
  expect_amount("25GB/s", kRate, 25e9, true);
  expect_amount("25GB", kRate, 25e9, true);
  expect_amount("1GiB/s", kRate, 1024.0 * 1024 * 1024, true);
  expect_amount("200Gbit/s", kRate, 25e9, true);
  expect_amount("800Mbps", kRate, 1e8, true);
  expect_amount("10ms", kTime, 0.01, true);
  expect_amount("1.5 us", kTime, 1.5e-6, true);
  expect_amount("2min", kTime, 120, true);
}

// A unit of something else is refused, and so is one that may mean bits or bytes.
TEST(Amount, RefusesWhatMayMeanSomethingElse) {
  for (const char* text : {"16GB/s", "10ms", "1XB", "5i", "1MiX", "", "GB", "many"}) EXPECT_FALSE(parse_amount(text, kBytes)) << text;
  for (const char* text : {"200Gb/s", "200Gb", "10ms", "/s", "1/s", "5bytes"}) EXPECT_FALSE(parse_amount(text, kRate)) << text;
  for (const char* text : {"16GB", "5m", "3 days", "s"}) EXPECT_FALSE(parse_amount(text, kTime)) << text;
}

// The examples that help and hints show are read.
TEST(Amount, ExamplesAreRead) {
  for (const Quantity quantity : {kBytes, kRate, kTime}) {
    const std::string both = examples_of(quantity), between = " or ";
    const std::size_t at = both.find(between);
    EXPECT_TRUE(parse_amount(both.substr(0, at), quantity)) << both;
    EXPECT_TRUE(parse_amount(both.substr(at + between.size()), quantity)) << both;
  }
}

}  // namespace
}  // namespace penstock
