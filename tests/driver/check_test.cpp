// SPDX-License-Identifier: Apache-2.0
#include "driver/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "driver/generation.h"

namespace penstock {
namespace {

std::vector<std::int64_t> rows_of(const char* port, std::int64_t first, std::int64_t rows) {
  const RandomBatch batch(text_ports(8), 50);
  std::vector<std::int64_t> out(static_cast<std::size_t>(rows * 8));
  StepInput input;
  input.seed = 5;
  batch.fill({port, {DType::i64, {4, 8}}, true}, input, first, rows, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(RandomBatch, TargetsAreTheNextTokensInStretchesOfUnequalLengths) {
  const auto tokens = rows_of("tokens", 0, 16), targets = rows_of("targets", 0, 16);
  std::set<std::ptrdiff_t> lengths;
  for (std::size_t row = 0; row < 16; ++row) {
    const auto begin = targets.begin() + static_cast<std::ptrdiff_t>(row * 8);
    lengths.insert(8 - std::count(begin, begin + 8, kIgnored));
    for (std::size_t i = 0; i + 1 < 8; ++i) EXPECT_TRUE(begin[i] == kIgnored || begin[i] == tokens[row * 8 + i + 1]);
    int edges = 0;
    for (std::size_t i = 0; i < 8; ++i) edges += begin[i] != kIgnored && begin[(i + 1) % 8] == kIgnored;
    EXPECT_LE(edges, 1);  // one stretch, and around
  }
  EXPECT_FALSE(lengths.contains(0));
  EXPECT_GT(lengths.size(), 3u);
  for (std::int64_t token : tokens) EXPECT_TRUE(token >= 0 && token < 50);
  EXPECT_EQ(rows_of("tokens", 5, 2), std::vector<std::int64_t>(tokens.begin() + 40, tokens.begin() + 56));
}

TEST(Compare, DifferencesAreRelativeToTheLargerOfParameterAndModel) {
  const StepGradients sequential{2.0, {{"a", {1.0, -4.0}}, {"key.bias", {0.0, 0.0}}}};
  const StepGradients pipelined{2.5, {{"a", {1.0, -4.4}}, {"key.bias", {0.0, 0.008}}}};
  const Comparison comparison = compare(pipelined, sequential);
  EXPECT_DOUBLE_EQ(comparison.loss_difference, 0.25);
  EXPECT_NEAR(comparison.gradient_difference, 0.2, 1e-12);  // 0.008 / (0.01 * 4)
  EXPECT_EQ(comparison.worst, "key.bias");
}

TEST(Compare, NotANumberIsNeverEqual) {
  const StepGradients sequential{2.0, {{"a", {1.0}}, {"b", {1.0}}}};
  const StepGradients pipelined{2.0, {{"a", {std::nan("")}}, {"b", {2.0}}}};
  const Comparison comparison = compare(pipelined, sequential);
  EXPECT_TRUE(std::isnan(comparison.gradient_difference));
  EXPECT_EQ(comparison.worst, "a");
}

TEST(Sample, TemperatureAndTopK) {
  const std::vector<double> logits = {0, std::log(3.0), -50};
  GenerationOptions options;
  options.temperature = 1;
  options.top_k = 0;
  EXPECT_EQ(sample(logits, options, 0.74), 1u);  // 3/4 of the mass
  EXPECT_EQ(sample(logits, options, 0.76), 0u);
  options.top_k = 1;
  EXPECT_EQ(sample(logits, options, 0.99), 1u);
  options.temperature = 0;
  options.top_k = 0;
  EXPECT_EQ(sample(logits, options, 0.99), 1u);
}

}  // namespace
}  // namespace penstock
