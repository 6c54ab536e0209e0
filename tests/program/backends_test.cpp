// SPDX-License-Identifier: Apache-2.0
#include "program/backends.h"

#include <gtest/gtest.h>

#include "config/config.h"
#include "support/errors.h"

namespace penstock {
namespace {

TEST(Backends, TheFirstIsTheDefault) {
  EXPECT_EQ(Config().pipeline.backend, backends().front().name);
  EXPECT_FALSE(backends().front().processes);
}

TEST(Backends, AnUnknownNameIsRefused) {
  EXPECT_EQ(test::message_of([] { find_backend("mpi"); }), "there is no backend \"mpi\"\n  hint: known: threads, gloo, nccl");
}

}  // namespace
}  // namespace penstock
