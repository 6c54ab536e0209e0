// SPDX-License-Identifier: Apache-2.0
// The bytes of a micro-batch's activations on each stage.
#include "lower/stage_bytes.h"

#include <gtest/gtest.h>

#include "config/shape_programs.h"
#include "models/registry.h"

namespace penstock {
namespace {

// Stage 0, F and backward of one micro-batch on each of two actors, with an R before the backward or without.
Schedule table_of(bool recompute) {
  Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 1});
  for (std::int32_t s = 0; recompute && s < 2; ++s)
    table.actors[static_cast<std::size_t>(s)].insert(table.actors[static_cast<std::size_t>(s)].begin() + 1, {s, Kind::R, 0});
  return table;
}

TEST(StageBytes, OfPaddedRows) {
  const Config config = parse_config(
      "[model]\nname = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2\ncontext = 32\n[train]\nbatch = 4\n[pipeline]\nmicrobatches = 2\n",
      "test", {}, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  ShapePrograms programs(config, prepared);
  const auto bytes = [&](std::int64_t samples, bool recompute) {
    return stage_bytes(programs.class_of({samples, 24, 0}, table_of(recompute))[0]);
  };
  const std::vector<StageBytes> one = bytes(1, false), three = bytes(3, false), again = bytes(3, true);
  ASSERT_EQ(one.size(), 2U);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_GT(one[s].live, 0);
    EXPECT_EQ(one[s].kept, one[s].live);
    EXPECT_EQ(three[s].live, 3 * one[s].live);
    EXPECT_LT(again[s].kept, again[s].live / 2);
  }
  EXPECT_EQ(three[0].sent, 3 * 24 * 16 * 4);
  EXPECT_EQ(three[1].sent, 0);
  // A program of one micro-batch has room for them.
  const Program program = programs.program({{3, 24, 0}}, table_of(false)).program;
  for (std::size_t d = 0; d < 2; ++d) EXPECT_GE(static_cast<double>(program.devices[d].step_bytes), three[d].live);
}

}  // namespace
}  // namespace penstock
