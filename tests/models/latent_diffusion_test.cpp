// SPDX-License-Identifier: Apache-2.0
// The latent diffusion model: what is frozen, where its stages are, and what it refuses.
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "driver/pictures.h"
#include "models/support.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "report/png.h"
#include "schedule/forward_stages.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::model;

bool is_frozen(const std::string& name) {
  return name.starts_with("text.") || name.starts_with("image.");
}

const Graph& body_of(const Graph& graph) {
  for (const Op& op : graph.ops)
    if (op.body) return *op.body;
  throw std::runtime_error("no loop");
}

TEST(LatentDiffusion, EncodersAreFrozen) {
  const auto made = model("latent_diffusion");
  for (const ParameterSpec& spec : made->parameters()) EXPECT_EQ(spec.trained, !is_frozen(spec.name)) << spec.name;
  std::set<std::string> outputs;
  for (const std::string& name : gradient_step(*made, {4, 0, 2}).output_names) outputs.insert(name);
  EXPECT_TRUE(outputs.contains("gradient:layer.0.up.weight"));
  EXPECT_FALSE(outputs.contains("gradient:text.embedding.weight"));
}

// The stages that have ops of the phase, in their order.
std::string stages_of(const Model& made, Phase phase) {
  std::set<int> found;
  const Graph graph = gradient_step(made, {4, 0, 2});
  for (const Op& op : body_of(graph).ops)
    if (op.phase == phase && !op.stage.empty()) found.insert(std::stoi(op.stage));
  return join(found, " ", [](int stage) { return std::to_string(stage); });
}

TEST(LatentDiffusion, EncodersHaveStagesOfTheirOwn) {
  EXPECT_EQ(stages_of(*model("latent_diffusion", {}, 2), Phase::forward), "0 1");
  EXPECT_EQ(stages_of(*model("latent_diffusion", {}, 2), Phase::backward), "1");
  EXPECT_EQ(stages_of(*model("latent_diffusion", {}, 6), Phase::backward), "2 3 4 5");
  EXPECT_EQ(stages_of(*model("latent_diffusion", {{"frozen_stages", 3}}, 5), Phase::forward), "0 1 2 3 4");
  EXPECT_EQ(stages_of(*model("latent_diffusion", {{"frozen_stages", 3}}, 5), Phase::backward), "3 4");
  EXPECT_EQ(stages_of(*model("latent_diffusion", {{"frozen_stages", 1}}, 4), Phase::backward), "1 2 3");
}

std::string stages_of_layers(const char* stage_layers, int stages) {
  ModelOptions options;
  const ModelEntry entry = builtin_models().at("latent_diffusion");
  options.numbers = entry.numbers;
  options.words = {{"stage_layers", stage_layers}};
  options.stages = stages;
  std::string out;
  const Graph graph = gradient_step(*entry.make(options), {4, 0, 2});
  for (int layer = 0; layer < 4; ++layer)
    for (const Op& op : body_of(graph).ops)
      if (op.origin == concat("layer.", layer, ".up") && op.phase == Phase::forward && !op.stage.empty()) {
        out += op.stage;
        break;
      }
  return out;
}

TEST(LatentDiffusion, TwoBackbonesHaveStagesOfTheirOwn) {
  const std::map<std::string, double> two = {{"backbones", 2}};
  EXPECT_EQ(stages_of(*model("latent_diffusion", two, 6), Phase::forward), "0 1 2 3 4 5");
  EXPECT_EQ(stages_of(*model("latent_diffusion", two, 6), Phase::backward), "2 3 4 5");
  EXPECT_EQ(stages_of(*model("latent_diffusion", two, 3), Phase::backward), "2");
  EXPECT_EQ(stages_of(*model("latent_diffusion", two, 1), Phase::backward), "0");
  const Schedule table = make_schedule("bidirectional", {.actors = 2, .microbatches = 2, .chunks = 2, .frozen = {1, 1}});
  const auto compiled = [&](const std::map<std::string, double>& numbers) {
    return message_of([&] { compile(training_step(*model("latent_diffusion", numbers, 6), {4, 0, 2}, {.clip = 0}), table); });
  };
  EXPECT_EQ(compiled(two), "no error");
  EXPECT_EQ(compiled({}).substr(0, 103),
            "bidirectional: stage 2 feeds stage 4, which the table has beside it, not behind it\n  hint: use a schedu");
  const auto refused = [](std::map<std::string, double> numbers, int stages) {
    return message_of([&] { model("latent_diffusion", std::move(numbers), stages); });
  };
  EXPECT_EQ(refused({{"backbones", 3}}, 1), "backbones is 3\n  hint: use 1, or 2: of the image at half its size and of the image");
  EXPECT_EQ(refused({{"backbones", 2}, {"image", 24}}, 1),
            "an image has 3 x 3 patches, and at half its size no whole number\n  hint: use an image size of 32, or backbones = 1");
  EXPECT_EQ(refused({{"backbones", 2}}, 5),
            "model \"latent_diffusion\" with two backbones cannot be cut into 5 stages, 2 of them frozen\n"
            "  hint: both backbones have as many stages: give an even number of trained ones, as two chunks for each actor");
}

TEST(LatentDiffusion, TheFirstWayHasStagesWithoutABackward) {
  const std::map<std::string, double> own = {{"self_conditioning", 0.5}};
  EXPECT_EQ(stages_of(*model("latent_diffusion", own, 6), Phase::forward), "0 1 2 3 4 5");
  EXPECT_EQ(stages_of(*model("latent_diffusion", own, 6), Phase::backward), "4 5");
  EXPECT_EQ(stages_of(*model("latent_diffusion", own, 3), Phase::backward), "2");
  const auto compiled = [&](const std::map<std::string, double>& numbers, int window) {
    const Schedule table =
        make_schedule("1f1b", {.actors = 2, .microbatches = 2, .window = window, .self_conditioning = true, .frozen = {1, 1}});
    return message_of([&] { compile(training_step(*model("latent_diffusion", numbers, 6), {4, 0, 2}, {.clip = 0}), table); });
  };
  EXPECT_EQ(compiled(own, 1), "no error");
  EXPECT_EQ(compiled(own, 3), "no error");
  EXPECT_EQ(compiled({}, 1).substr(0, 41), "schedule 1f1b: stage 2 is frozen, and its");
  const auto refused = [](std::map<std::string, double> numbers, int stages) {
    return message_of([&] { model("latent_diffusion", std::move(numbers), stages); });
  };
  EXPECT_EQ(refused({{"self_conditioning", 1.5}}, 1), "self_conditioning is 1.5\n  hint: give the share of the samples, from 0 to 1");
  EXPECT_EQ(refused({{"self_conditioning", 1}, {"backbones", 2}}, 1),
            "self_conditioning is 1.0, and backbones 2\n  one backbone reads what it gave itself\n"
            "  hint: set backbones to 1, or self_conditioning to 0");
  EXPECT_EQ(refused(own, 5),
            "model \"latent_diffusion\" with self-conditioning cannot be cut into 5 stages, 2 of them frozen\n"
            "  hint: both ways have as many stages: give an even number of trained ones, as two chunks for each actor");
}

TEST(LatentDiffusion, SaysHowManyLayersAStageHas) {
  EXPECT_EQ(stages_of_layers("even", 4), "2233");
  EXPECT_EQ(stages_of_layers("1+3", 4), "2333");
  EXPECT_EQ(stages_of_layers("1+2+1", 5), "2334");
  EXPECT_EQ(stages_of_layers("1+3", 1), "0000");
  const auto refused = [](const char* text) { return message_of([&] { stages_of_layers(text, 4); }); };
  EXPECT_EQ(refused("1+x"),
            "stage_layers is \"1+x\": \"x\" is no number of layers from 1 to 4\n  hint: say how many layers each trained "
            "stage has, as 1+3, or even");
  EXPECT_EQ(refused("1+0+3"),
            "stage_layers is \"1+0+3\": \"0\" is no number of layers from 1 to 4\n  hint: say how many layers each "
            "trained stage has, as 1+3, or even");
  EXPECT_EQ(refused("2+3"),
            "stage_layers is \"2+3\", which are 5 layers; the model has 4\n  hint: say how many layers each trained stage "
            "has, as 1+3, or even");
  EXPECT_EQ(refused("1+2+1"),
            "stage_layers is \"1+2+1\", 3 stages; there are 2 that are trained\n  4 stages, 2 of them frozen\n"
            "  hint: give a number of layers for each, or even");
}

TEST(LatentDiffusion, RefusesWhatItCannotDo) {
  const auto refused = [](std::map<std::string, double> numbers, int stages = 1) {
    return message_of([&] { model("latent_diffusion", numbers, stages); });
  };
  EXPECT_EQ(refused({{"patch", 3}}), "patch is 3\n  the encoder takes the mean of 2 x 2 pixels\n  hint: use a multiple of 2");
  EXPECT_EQ(refused({{"image", 20}}), "images of 20 x 20 are not cut evenly into patches of 8 x 8\n  hint: use an image size of 24");
  EXPECT_EQ(refused({{"width", 7}, {"heads", 1}}),
            "width is 7\n  a timestep's embedding has as many sines as cosines\n  hint: use an even one");
  EXPECT_EQ(refused({{"text_width", 30}}),
            "width 30 is not divisible by 4 heads\n  hint: use a width of 32, or a number of heads that divides 30");
  EXPECT_EQ(refused({{"condition_dropout", 1}}), "condition_dropout is 1.0\n  hint: give a probability from 0 to below 1");
  EXPECT_EQ(refused({{"frozen_stages", 4}}, 8),
            "frozen_stages is 4\n  the encoders have 2 layers of text, and one stage of images\n  hint: use 0 to 3");
  EXPECT_EQ(refused({}, 7),
            "model \"latent_diffusion\" with 4 layers cannot be cut into 7 stages, 2 of them frozen\n  hint: a stage has a layer at least; "
            "frozen_stages says how many of all stages (actors times chunks) are the encoders'");
  EXPECT_NE(refused({{"classes", 0}}).find("classes"), std::string::npos);
}

TEST(LatentDiffusion, OtherModelsMakeNoPictures) {
  const auto other = model("vgg");
  EXPECT_FALSE(other->picture_steps());
  EXPECT_EQ(message_of([&] { other->next_latents({}, {}); }).substr(0, 28), "this model makes no pictures");
  EXPECT_EQ(message_of([&] { other->picture({}, {}); }).substr(0, 28), "this model makes no pictures");
}

TEST(Pictures, LevelsGoDownToNoNoise) {
  EXPECT_EQ(levels_of_steps(100, 4), (std::vector<std::int64_t>{99, 74, 49, 24, -1}));
  EXPECT_EQ(levels_of_steps(3, 3), (std::vector<std::int64_t>{2, 1, 0, -1}));
  EXPECT_EQ(levels_of_steps(3, 1), (std::vector<std::int64_t>{2, -1}));
}

// Its last chunk is the same in every PNG, with a checksum that is known. The rows are a red and a blue pixel.
TEST(Png, HasChecksums) {
  const std::vector<std::uint8_t> pixels = {255, 0, 0, 0, 0, 255};
  const std::string found = png(2, 1, pixels);
  EXPECT_EQ(found.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(found.substr(found.size() - 12), std::string("\0\0\0\0IEND\xae\x42\x60\x82", 12));
  EXPECT_EQ(found.size(), 8u + 25 + (12 + 2 + 5 + 7 + 4) + 12);
}

TEST(ForwardStages, LoseWhatTheyHaveNothingToDoFor) {
  Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 2});
  StageShape shape = chain(2);
  EXPECT_EQ(print(without_absent_backwards(table, shape)), print(table));
  shape.has_backward[0] = shape.has_parameters[0] = false;
  const Schedule left = without_absent_backwards(with_updates(table), shape);
  EXPECT_EQ(print(left), "0F0,0F1\n1F0,1B0,1F1,1B1,1U\n");
  EXPECT_NO_THROW(validate(left, shape));
  table.actors = {{{0, Kind::F, 0, 1, true}, {0, Kind::B, 0}}, {{1, Kind::F, 0}, {1, Kind::B, 0}}};
  EXPECT_FALSE(without_absent_backwards(table, shape).actors[0][0].fused_with_next);
}

}  // namespace
}  // namespace penstock
