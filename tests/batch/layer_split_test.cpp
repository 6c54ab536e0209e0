// SPDX-License-Identifier: Apache-2.0
#include "batch/layer_split.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "support/rounds.h"

namespace penstock {
namespace {

// Equal times of all three, without the first input gradient.
LayerTimes alike(const std::vector<double>& times) {
  LayerTimes out{times, times, times};
  out.input[0] = 0;
  return out;
}

TEST(LayerSplit, LargestOverMeanAsComputedForLayerPipe) {
  struct Case {
    std::vector<double> times;
    int processors;
    double whole, apart, divided;
  };
  for (const Case& c : {Case{{4, 3, 5, 2, 6, 1, 3, 4}, 7, 1.225, 1.225, 1.05},
                        {{8, 8, 4, 4, 2, 2, 1, 1}, 7, 1.366, 1.366, 1.059},
                        {{1, 1, 1, 1, 1, 1, 1, 1}, 7, 1.217, 1.217, 1.035},
                        {{3, 7, 2}, 4, 1.697, 1.212, 1.212},
                        {{1, 2, 3, 4}, 3, 1.138, 1.138, 1.034}}) {
    const auto ratio = [&](BackwardSplit backward) {
      const LayerSplit split = split_layers(alike(c.times), c.processors, backward);
      return split.largest / split.mean;
    };
    EXPECT_NEAR(ratio(BackwardSplit::whole), c.whole, 5e-4);
    EXPECT_NEAR(ratio(BackwardSplit::apart), c.apart, 5e-4);
    EXPECT_NEAR(ratio(BackwardSplit::divided), c.divided, 5e-4);
  }
}

// Whatever the times, all work is placed once, in order, and what may be split more is never worse.
TEST(LayerSplit, PlacesAllWorkOnce) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    LayerTimes times;
    const auto layers = 1 + random() % 9;
    const int processors = 1 + static_cast<int>(random() % 8);
    for (std::size_t l = 0; l < layers; ++l)
      for (std::vector<double>* of : {&times.forward, &times.input, &times.weight})
        of->push_back(std::uniform_real_distribution<double>(0.1, 3)(random));
    double before = std::numeric_limits<double>::infinity();
    for (const BackwardSplit backward : {BackwardSplit::whole, BackwardSplit::apart, BackwardSplit::divided}) {
      const LayerSplit split = split_layers(times, processors, backward);
      ASSERT_EQ(std::ssize(split.processors), processors);
      EXPECT_LE(split.largest, before * (1 + 1e-9));
      EXPECT_GE(split.largest, split.mean * (1 - 1e-9));
      before = split.largest;
      std::vector<std::vector<double>> placed(3, std::vector<double>(layers, 0));
      std::vector<std::vector<int>> parts(3, std::vector<int>(layers, 0));
      for (const auto& processor : split.processors)
        for (const LayerPart& part : processor) {
          placed[static_cast<std::size_t>(part.work)][static_cast<std::size_t>(part.layer)] += part.share;
          ++parts[static_cast<std::size_t>(part.work)][static_cast<std::size_t>(part.layer)];
        }
      for (std::size_t w = 0; w < 3; ++w)
        for (std::size_t l = 0; l < layers; ++l) {
          EXPECT_NEAR(placed[w][l], 1, 1e-9);
          EXPECT_LE(parts[w][l], backward == BackwardSplit::divided && w == 1 ? 2 : 1);
        }
    }
  }
}

}  // namespace
}  // namespace penstock
