// SPDX-License-Identifier: Apache-2.0
#include "trace/decays.h"

#include <gtest/gtest.h>

#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

TEST(Decays, TheFirstIsTheDefault) {
  EXPECT_EQ(OptimiserOptions().decay, decays().front().name);
}

TEST(Decays, AnUnknownNameIsRefused) {
  EXPECT_EQ(test::message_of([] { find_decay("linera"); }),
            "the learning rate has no decay \"linera\"\n  there are cosine, linear, wsd, constant, given\n"
            "  hint: did you mean \"linear\"?");
}

}  // namespace
}  // namespace penstock
