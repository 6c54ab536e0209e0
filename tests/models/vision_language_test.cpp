// SPDX-License-Identifier: Apache-2.0
// The multimodal model with images: its stages by parts, and what it refuses.
#include <gtest/gtest.h>

#include "models/registry.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::message_of;

std::unique_ptr<Model> made(int stages, std::map<std::string, double> numbers = {}) {
  numbers.merge(
      std::map<std::string, double>{{"layers", 4}, {"vision_layers", 4}, {"width", 8}, {"context", 24}, {"images", 3}, {"image_size", 8}});
  return make_model(builtin_models(), "multimodal",
                    {.numbers = std::move(numbers), .words = {{"input", "images"}}, .stages = stages, .compute = DType::f32});
}

std::vector<std::string> stages_with(int stages, const std::optional<std::vector<std::int64_t>>& parts) {
  const Graph step = gradient_step(*made(stages), {2, 16, 1, BatchCount::port, {.parts = parts}});
  verify(step);
  const auto names = assign_stages(eliminate_dead_code(step)).stages;
  return {names.begin(), names.end()};
}

TEST(VisionLanguage, EachPartHasStagesOfItsOwn) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(stages_with(1, std::nullopt), (Names{"text.0"}));
  EXPECT_EQ(stages_with(4, std::nullopt), (Names{"vision.0.0", "vision.0.1", "text.0", "text.1"}));
  EXPECT_EQ(stages_with(2, {{2, 1}}), (Names{"vision.0.0", "vision.1.0", "text.0"}));
  EXPECT_EQ(stages_with(2, {{}}), (Names{"text.0"}));
}

TEST(VisionLanguage, VisionStages) {
  EXPECT_NO_THROW(made(5, {{"vision_stages", 1}}));
  EXPECT_EQ(message_of([] { made(6, {{"vision_stages", 1}}); }),
            "model \"multimodal\" with 4 layers of vision and 4 of text cannot be cut into 1 and 5 stages\n"
            "  hint: a stage has a layer at least; vision_stages says how many of all stages (actors times chunks) are the encoder's");
}

TEST(VisionLanguage, Refused) {
  EXPECT_EQ(message_of([] { made(2, {{"image_size", 9}}); }),
            "images of 9 x 9 are not cut evenly into patches of 4 x 4\n  hint: use an image_size of 12");
  EXPECT_EQ(message_of([] { made(2, {{"image_tokens", 3}}); }),
            "the 4 patches of an image do not make 3 tokens of equally many patches\n"
            "  hint: use a number of image_tokens that divides the number of patches");
  EXPECT_EQ(message_of([] { made(2, {{"context", 3}}); }),
            "context 3 has no room for a text behind 3 images of 1 tokens\n  hint: use a context above 3");
}

}  // namespace
}  // namespace penstock
