// SPDX-License-Identifier: Apache-2.0
// Layouts that nobody named: beside formulas, and beside the model's names.
#include "lower/choose_layouts.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "lower/lower.h"
#include "lower/member_inputs.h"
#include "models/support.h"

namespace penstock {
namespace {

Config config_of(const std::string& mesh, const std::vector<std::string>& settings) {
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

// The step as it is when the layouts along the axis are decided, and what is asked for along it.
struct Asked {
  Graph step;
  AxisWishes wishes;
};
Asked asked(const Config& config) {
  const Prepared prepared = prepare(config, builtin_models());
  return {prepare_stages(training_graph(config, prepared), true, prepared.options.axes).step,
          training_layouts(config, prepared).at(0).wishes};
}

LayoutChoice chosen(const std::string& mesh, std::vector<std::string> settings) {
  settings.emplace_back("layout.choose=tensor");
  return prepare(config_of(mesh, settings), builtin_models()).choices.at(0).choice;
}

std::string names_of(const LayoutChoice& choice) {
  return join(choice.classes, ", ", [](const LayoutClass& found) { return found.name; });
}

// 8 b s h (t-1)/t elements for each layer and micro-batch (Megatron, 1909.08053), and a number once a step for the norm that clips.
// Embedding and head stay whole, as they are few enough.
TEST(ChosenLayouts, OfGptSendWhatMegatronSends) {
  for (const double members : {2., 4.})
    for (const char* pipe : {"pipe=1", "pipe=2"}) {
      const LayoutChoice choice = chosen(concat(pipe, ",tensor=", members), {});
      SCOPED_TRACE(concat(pipe, " ", members, ": ", names_of(choice)));
      const double layers = 4, microbatches = 8, b = 2, s = 128, h = 128;
      const double layer = 8 * b * s * h * (members - 1) / members, norm = 2 * (members - 1) / members;
      EXPECT_EQ(choice.score.bytes, 4 * (layers * microbatches * layer + norm));
      EXPECT_EQ(names_of(choice), "heads, mlp");
    }
}

// Where the embedding is too large to stay whole: with what it and the loss send, exactly as Megatron splits them.
TEST(ChosenLayouts, OfGptAreMegatronsWhereTheVocabularyIsLarge) {
  for (const int members : {2, 4}) {
    const std::string mesh = concat("pipe=1,tensor=", members);
    const LayoutChoice choice = chosen(mesh, {"vocabulary=2048"});
    EXPECT_EQ(names_of(choice), "heads, mlp, vocab");
    const Asked named = asked(config_of(mesh, {"vocabulary=2048"}));
    EXPECT_EQ(score_of(named.step, named.wishes).bytes, choice.score.bytes);
  }
}

// What is found of a model is what its program does.
TEST(ChosenLayouts, AreWhatIsAskedForThen) {
  for (const char* model : {"gpt", "moe", "two-branch", "resnet"}) {
    const std::vector<std::string> settings = {concat("name=", model), "layout.choose=tensor"};
    const Asked then = asked(config_of("pipe=2,tensor=2", settings));
    const LayoutScore score = chosen("pipe=2,tensor=2", {concat("name=", model)}).score, counted = score_of(then.step, then.wishes);
    EXPECT_EQ(counted.bytes, score.bytes) << model;
    EXPECT_EQ(counted.conversions, score.conversions) << model;
  }
}

TEST(ChosenLayouts, AreNeverWorseThanNames) {
  for (const char* model : {"gpt", "t5", "mlp", "two-branch", "moe", "dlrm", "multimodal"})
    for (const char* mesh : {"pipe=1,tensor=2", "pipe=2,tensor=2"}) {
      const Asked named = asked(config_of(mesh, {concat("name=", model)}));
      const LayoutScore score = score_of(named.step, named.wishes);
      const LayoutChoice choice = chosen(mesh, {concat("name=", model)});
      EXPECT_FALSE(score < choice.score) << model << ": " << score.bytes << " by names, " << choice.score.bytes << " by "
                                         << names_of(choice);
      EXPECT_EQ(choice.score.whole, kMostWhole) << model;
    }
}

}  // namespace
}  // namespace penstock
