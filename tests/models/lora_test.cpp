// SPDX-License-Identifier: Apache-2.0
// Adapters of low rank: what is trained beside a frozen model, and what backward leaves out for it.
#include "models/lora.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "models/support.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::model;

using Sizes = std::map<std::string, double>;
const Sizes kSmall = {{"layers", 2}, {"width", 8}, {"heads", 2}, {"context", 16}};

Sizes with(Sizes sizes, const Sizes& others) {
  for (const auto& [key, value] : others) sizes[key] = value;
  return sizes;
}

std::unique_ptr<Model> adapted_to(const std::string& matrices, double rank) {
  return make_model(builtin_models(), "gpt", {.numbers = with(kSmall, {{"lora", rank}}), .words = {{"lora_to", matrices}}});
}

std::vector<std::string> trained(const Model& model) {
  std::vector<std::string> out;
  for (const ParameterSpec& spec : model.parameters())
    if (spec.trained) out.push_back(concat(spec.name, " ", spec.type.text()));
  return out;
}

// The ops of the loop's body in backward, each with its origin.
std::vector<std::string> backward_of(const Graph& step) {
  std::vector<std::string> out;
  for (const Op& op : step.ops)
    for (std::size_t i = 0; op.body && i < op.body->ops.size(); ++i)
      if (const Op& inner = op.body->ops[OpId(i)]; inner.phase == Phase::backward) out.push_back(concat(inner.name, " ", inner.origin));
  return out;
}

TEST(Lora, TrainsAdaptersAlone) {
  EXPECT_EQ(join(trained(*adapted_to("attention", 3)), "\n"),
            "h.0.attn.c_attn.lora_A.weight f32[3,8]\n"
            "h.0.attn.c_attn.lora_B.weight f32[24,3]\n"
            "h.0.attn.c_proj.lora_A.weight f32[3,8]\n"
            "h.0.attn.c_proj.lora_B.weight f32[8,3]\n"
            "h.1.attn.c_attn.lora_A.weight f32[3,8]\n"
            "h.1.attn.c_attn.lora_B.weight f32[24,3]\n"
            "h.1.attn.c_proj.lora_A.weight f32[3,8]\n"
            "h.1.attn.c_proj.lora_B.weight f32[8,3]");
  EXPECT_EQ(trained(*adapted_to("mlp", 8)).size(), 8U);
  EXPECT_EQ(trained(*adapted_to("all", 8)).size(), 16U);
  verify(training_step(*adapted_to("all", 8), {2, 8, 1}, {}));
}

// The experts of a mixture stay as they are, and so does their gate.
TEST(Lora, LeavesExpertsFrozen) {
  const auto moe = model("moe", with(kSmall, {{"lora", 2}}));
  EXPECT_EQ(trained(*moe).size(), 12U);
  verify(training_step(*moe, {2, 8, 1}, {}));
}

// Encoder and decoder; their shared embedding, norms and tables of distances stay.
TEST(Lora, OfT5) {
  const auto t5 = [](const std::string& matrices) {
    return make_model(builtin_models(), "t5", {.numbers = with(kSmall, {{"layers", 1}, {"lora", 2}}), .words = {{"lora_to", matrices}}});
  };
  EXPECT_EQ(join(trained(*t5("mlp")), "\n"),
            "encoder.block.0.layer.1.DenseReluDense.wi.lora_A.weight f32[2,8]\n"
            "encoder.block.0.layer.1.DenseReluDense.wi.lora_B.weight f32[32,2]\n"
            "encoder.block.0.layer.1.DenseReluDense.wo.lora_A.weight f32[2,32]\n"
            "encoder.block.0.layer.1.DenseReluDense.wo.lora_B.weight f32[8,2]\n"
            "decoder.block.0.layer.2.DenseReluDense.wi.lora_A.weight f32[2,8]\n"
            "decoder.block.0.layer.2.DenseReluDense.wi.lora_B.weight f32[32,2]\n"
            "decoder.block.0.layer.2.DenseReluDense.wo.lora_A.weight f32[2,32]\n"
            "decoder.block.0.layer.2.DenseReluDense.wo.lora_B.weight f32[8,2]");
  EXPECT_EQ(trained(*t5("attention")).size(), 2U * 4 * 3);  // q, k, v and o of two self-attentions and a cross-attention
  EXPECT_EQ(trained(*t5("all")).size(), 2U * (4 * 3 + 2 * 2));
  verify(training_step(*t5("all"), {2, 8, 1}, {}));
}

TEST(Lora, WithoutARankTheModelIsAsItWas) {
  EXPECT_EQ(trained(*model("gpt", kSmall)).size(), model("gpt", kSmall)->parameters().size());
}

// The optimiser keeps two moments of what is trained, and nothing of the rest.
TEST(Lora, KeepsMomentsOfAdaptersAlone) {
  const auto state = [](const Model& model) {
    const Graph step = training_step(model, {2, 8, 1}, {});
    std::int64_t bytes = 0;
    for (int i = 0; i < step.state; ++i) bytes += step.values[step.inputs[static_cast<std::size_t>(i)]].type.bytes();
    return bytes;
  };
  std::int64_t base = 0, adapters = 0;
  for (const ParameterSpec& spec : adapted_to("all", 2)->parameters()) (spec.trained ? adapters : base) += spec.type.bytes();
  EXPECT_EQ(state(*model("gpt", kSmall)), 3 * base + 8);
  EXPECT_EQ(state(*adapted_to("all", 2)), base + 3 * adapters + 8);
}

// Frozen weights have no gradient, and before the first adapter there is no backward at all.
TEST(Lora, ComputesNoGradientThatNobodyReads) {
  const auto count = [](const std::vector<std::string>& ops, const std::string& begin) {
    return std::count_if(ops.begin(), ops.end(), [&](const std::string& op) { return op.starts_with(begin); });
  };
  const std::vector<std::string> ops = backward_of(gradient_step(*adapted_to("all", 2), {2, 8, 1})),
                                 full = backward_of(gradient_step(*model("gpt", kSmall), {2, 8, 1}));
  EXPECT_GT(count(full, "embedding"), 0);
  EXPECT_EQ(count(ops, "embedding"), 0);
  EXPECT_GT(count(full, "native_layer_norm_backward h.0.ln_1"), 0);
  EXPECT_EQ(count(ops, "native_layer_norm_backward h.0.ln_1"), 0);
  EXPECT_EQ(count(ops, "native_layer_norm_backward"), 4);
}

TEST(Lora, SaysWhatDoesNotFit) {
  const auto message = [](const Sizes& numbers, const std::string& to = "all") {
    return message_of([&] { make_model(builtin_models(), "gpt", {.numbers = with(kSmall, numbers), .words = {{"lora_to", to}}}); });
  };
  const std::string rank = "model option \"lora\", the adapters' rank, is ",
                    hint = "\n  hint: give a whole number from 1 on, such as 8, or 0 to train the model without adapters";
  EXPECT_EQ(message({{"lora", -1}}), rank + "-1.0" + hint);
  EXPECT_EQ(message({{"lora", 2.5}}), rank + "2.5" + hint);
  EXPECT_EQ(message({{"lora", 9}}),
            "model option \"lora\" is 9, but the rank of \"h.0.attn.c_attn.weight\" is 8 at most\n  it maps 8 numbers to 24\n"
            "  hint: use a rank from 1 to 8");
  const std::string none =
      ", but there are no adapters\n  model option \"lora\", the adapters' rank, is 0\n  hint: give a rank too: --set lora=8";
  EXPECT_EQ(message({{"lora_alpha", 16}}), "model option \"lora_alpha\" is 16.0" + none);
  EXPECT_EQ(message({}, "mlp"), "model option \"lora_to\" is \"mlp\"" + none);
  EXPECT_EQ(message({{"lora", 2}, {"lora_alpha", -4}}),
            "model option \"lora_alpha\" is -4.0\n  hint: give a number above 0: what adapters add is multiplied by lora_alpha / lora; 0 "
            "stands for lora, the rank");
  EXPECT_EQ(message({{"lora", 2}}, "head"), "model option \"lora_to\" is \"head\"\n  hint: use all or attention or mlp");
}

}  // namespace
}  // namespace penstock
