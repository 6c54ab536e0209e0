// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that the axis context splits, by heads and in parts, against the sequential step: every gradient, in f64.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "support/errors.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

Config config_of(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"width=24", "layers=2", "batch=4", "microbatches=2", "actors=1", "dtype=f64", "schedule=1f1b"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

bool is_in_parts(const Program& program) {
  return print(program).find("attention_join") != std::string::npos;
}

void expect_equal_steps(bool in_parts, const std::vector<std::string>& settings) {
  SCOPED_TRACE(join(settings, ", "));
  const Config config = config_of(settings);
  const Prepared prepared = prepare(config, builtin_models());
  compile_training(config, prepared);  // which checks what updates leave
  const Program program = compile_gradients(config, prepared);
  EXPECT_EQ(is_in_parts(program), in_parts);
  const Comparison comparison = compare(test::step_of(config, prepared, program), test::sequential_step(config));
  EXPECT_LE(comparison.loss_difference, 1e-10);
  EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
}

TEST(SplitAttention, ByHeadsAndInPartsEqualsTheSequentialStep) {
  for (const char* attention : {"attention=heads", "attention=parts"})
    for (const char* heads : {"heads=4", "heads=6"})
      for (const char* context : {"pipeline.context=2", "pipeline.context=3", "pipeline.context=4"})
        expect_equal_steps(attention == std::string("attention=parts"), {"context=24", attention, heads, context});
}

TEST(SplitAttention, OfFewHeadsIsInParts) {
  for (const char* heads : {"heads=1", "heads=2", "heads=3"}) expect_equal_steps(true, {"context=32", heads, "pipeline.context=4"});
  expect_equal_steps(false, {"context=16", "heads=4", "pipeline.context=4"});
  expect_equal_steps(false, {"context=15", "heads=1", "pipeline.context=2"});  // of no equal chunks: whole on each
}

TEST(SplitAttention, InPartsGoesThroughPipelines) {
  for (const char* schedule : {"schedule=1f1b", "schedule=zb-h1", "schedule=gpipe"})
    expect_equal_steps(true, {"context=16", "heads=1", "actors=2", "pipeline.context=2", schedule});
  expect_equal_steps(true, {"context=16", "heads=1", "actors=2", "pipeline.context=4", "recompute=inputs"});
  expect_equal_steps(true, {"context=16", "heads=3", "actors=2", "attention=parts", "pipeline.context=2", "pipeline.data=2", "zero=1"});
  expect_equal_steps(true, {"context=16", "heads=3", "actors=1", "attention=parts", "pipeline.context=2", "pipeline.data=2", "zero=3"});
}

TEST(SplitAttention, InPartsGoesWithOtherAxes) {
  expect_equal_steps(true, {"context=16", "heads=2", "pipeline.context=4", "pipeline.tensor=2"});
  expect_equal_steps(true, {"context=16", "heads=5", "width=40", "attention=parts", "pipeline.context=2", "pipeline.tensor=2"});
  expect_equal_steps(true, {"context=16", "heads=1", "dropout=0.1", "pipeline.context=2"});
}

std::string error_of(const std::vector<std::string>& settings) {
  const Config config = config_of(settings);
  return test::message_of([&] { compile_gradients(config, prepare(config, builtin_models())); });
}

TEST(SplitAttention, ThatCannotBeInPartsIsAnError) {
  EXPECT_EQ(error_of({"context=16", "attention=parts", "layout.sequence=tensor", "pipeline.tensor=2"}),
            "attention in parts along axis \"tensor\": beside \"sequence\" it has \"heads\", \"mlp\", \"vocab\"\n"
            "  parts of a sequence are for members that have nothing else in parts\n"
            "  hint: give the sequence an axis of its own (--mesh context=N), or set pipeline.attention = \"heads\"");
  EXPECT_EQ(error_of({"context=16", "attention=parts", "layout.0.sequence=", "pipeline.context=2"}),
            "attention in parts along axis \"context\": stages have layouts of their own\n"
            "  parts of a sequence are for members that have nothing else in parts\n"
            "  hint: give the sequence an axis of its own (--mesh context=N), or set pipeline.attention = \"heads\"");
  EXPECT_EQ(error_of({"context=18", "attention=parts", "pipeline.context=2"}),
            "attention in parts along axis \"context\" of 2 members: a sequence of 18 does not divide into 4 equal chunks\n"
            "  read by scaled_dot_product_attention of h.0\n"
            "  its mask is causal: each member has a chunk from the front and one from the back\n"
            "  hint: use a length of 20, or pipeline.attention = \"heads\"");
  EXPECT_EQ(error_of({"context=16", "attention=parts", "axes=[\"tensor\", \"context\"]", "pipeline.context=2", "pipeline.tensor=2"}),
            "attention in parts along axis \"context\": axis \"tensor\" stands before it\n"
            "  what members do of attention in parts is not alike, so no axis can stand before theirs\n"
            "  hint: write context first in --mesh, or pipeline.attention = \"heads\"");
}

}  // namespace
}  // namespace penstock
