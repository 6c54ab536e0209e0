// SPDX-License-Identifier: Apache-2.0
#include "config/learning_rate.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(LearningRate, IsSaidInALine) {
  Config::Train train;
  EXPECT_EQ(learning_rate_text(train), "0.001 from step 20, cosine to 0.0001 at step 400");
  train.warmup = 0;
  train.decay = "wsd";
  train.decay_end = 300;
  train.decay_steps = 50;
  EXPECT_EQ(learning_rate_text(train), "0.001, wsd over 50 steps to 0.0001 at step 300");
  train.decay = "constant";
  EXPECT_EQ(learning_rate_text(train), "0.001, constant");
}

TEST(LearningRate, OfALongerRunStaysThatOfTheRunBefore) {
  Config::Train before;
  before.steps = 200;
  before.learning_rate = 3e-3;
  before.decay = "linear";
  Config::Train train;
  train.steps = 400;
  keep_learning_rate(train, before, {"train.steps"});
  EXPECT_EQ(learning_rate_text(train), learning_rate_text(before));
  EXPECT_EQ(train.steps, 400);
  // The next run finds what this one stored.
  Config::Train third = train;
  third.steps = 800;
  keep_learning_rate(third, train, {"train.steps"});
  EXPECT_EQ(third.decay_end, 200);
}

TEST(LearningRate, ChangesWhereItIsTold) {
  Config::Train before;
  before.steps = 200;
  Config::Train train = before;
  train.steps = 400;
  train.learning_rate = 5e-4;
  keep_learning_rate(train, before, {"train.steps", "train.learning_rate", "train.decay_end"});
  EXPECT_EQ(learning_rate_text(train), "0.0005 from step 20, cosine to 5e-05 at step 400");
  train = before;
  keep_learning_rate(train, before, {});
  EXPECT_EQ(train.decay_end, 0);
}

}  // namespace
}  // namespace penstock
