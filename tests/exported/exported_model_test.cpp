// SPDX-License-Identifier: Apache-2.0
#include "exported/exported_model.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/text.h"
#include "penstock/step.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

// The text that penstock.export writes of an embedding, a dropout and a linear layer, with the mean loss over targets that count.
constexpr const char* kText = R"(penstock graph 1
graph @joint(%tokens: i64[{s0},{s1}], %targets: i64[{s0},{s1}], %embed.weight: f32[5,3], %head.weight: f32[5,3]) -> (f32[], f32[{s0},{s1},5], f32[5,3], f32[5,3]) {
  %0: f32[{s0},{s1},3] = aten::embedding(%embed.weight, %tokens) {padding_idx=-1, scale_grad_by_freq=false, sparse=false, origin="embed", sequence=0}
  %1: f32[{s0},{s1},3], %2: bool[{s0},{s1},3] = aten::native_dropout(%0) {p=0.5, train=true, origin="layers.0.0", sequence=1}
  %3: f32[3,5] = aten::t(%head.weight) {origin="head", sequence=2}
  %4: f32[{s0*s1},3] = aten::view(%1) {size=[{s0*s1}, 3], origin="head", sequence=3}
  %5: f32[{s0*s1},5] = aten::mm(%4, %3) {origin="head", sequence=4}
  %6: f32[{s0},{s1},5] = aten::_unsafe_view(%5) {size=[{s0}, {s1}, 5], origin="head", sequence=5}
  %7: f32[{s0*s1},5] = aten::view(%6) {size=[{s0*s1}, 5], sequence=6}
  %8: i64[{s0*s1}] = aten::view(%targets) {size=[{s0*s1}], sequence=7}
  %9: f32[{s0*s1},5] = aten::_log_softmax(%7) {dim=1, half_to_float=false, sequence=8}
  %10: f32[], %11: f32[] = aten::nll_loss_forward(%9, %8) {ignore_index=-100, none=[2], reduction=1, sequence=9}
  %12: f32[] = full() {dtype=f32, fill_value=1.0, size=[], phase="backward"}
  %13: f32[{s0*s1},5] = aten::nll_loss_backward(%12, %9, %8, %11) {ignore_index=-100, none=[3], reduction=1, phase="backward", sequence=9}
  %14: f32[{s0*s1},5] = aten::_log_softmax_backward_data(%13, %9) {dim=1, input_dtype=f32, phase="backward", sequence=8}
  %15: f32[{s0},{s1},5] = aten::view(%14) {size=[{s0}, {s1}, 5], phase="backward", sequence=6}
  %16: f32[{s0*s1},5] = aten::view(%15) {size=[{s0*s1}, 5], phase="backward", origin="head", sequence=5}
  %17: f32[5,{s0*s1}] = aten::t(%16) {phase="backward", origin="head", sequence=4}
  %18: f32[5,3] = aten::mm(%17, %4) {phase="backward", origin="head", sequence=4}
  %19: f32[3,5] = aten::t(%18) {phase="backward", origin="head", sequence=4}
  %20: f32[5,3] = aten::t(%3) {phase="backward", origin="head", sequence=4}
  %21: f32[{s0*s1},3] = aten::mm(%16, %20) {phase="backward", origin="head", sequence=4}
  %22: f32[{s0},{s1},3] = aten::view(%21) {size=[{s0}, {s1}, 3], phase="backward", origin="head", sequence=3}
  %23: f32[5,3] = aten::t(%19) {phase="backward", origin="head", sequence=2}
  %24: f32[{s0},{s1},3] = aten::native_dropout_backward(%22, %2) {scale=2.0, phase="backward", origin="layers.0.0", sequence=1}
  %25: f32[5,3] = aten::embedding_dense_backward(%24, %tokens) {num_weights=5, padding_idx=-1, scale_grad_by_freq=false, phase="backward", origin="embed", sequence=0}
  return %10, %6, %25, %23
}
)";

Exported exported_of(const std::string& symbols, const std::string& samples, std::string text) {
  return read_exported(R"({"penstock": "exported 1", "torch": "2.13.0", "model": "Tiny", "conditions": [], "loss": "mean", "symbols": )" +
                           symbols + R"(, "samples": )" + samples + R"(, "inputs": [{"name": "tokens", "role": "split"},
    {"name": "targets", "role": "split"}, {"name": "embed.weight", "role": "parameter", "trained": true},
    {"name": "head.weight", "role": "parameter", "trained": true}], "outputs": [{"role": "loss"}, {"role": "output", "name": "logits"},
    {"role": "gradient", "name": "embed.weight"}, {"role": "gradient", "name": "head.weight"}]})",
                       std::move(text));
}

Exported symbolic() {
  return exported_of(R"({"s0": {"name": "tokens.0", "example": 2, "min": 2, "max": 64},
                         "s1": {"name": "tokens.1", "example": 4, "min": 2, "max": 9007199254740992}})",
                     "\"s0\"", kText);
}

Exported fixed(std::int64_t samples, std::int64_t length) {
  return exported_of("{}", std::to_string(samples), with_sizes(kText, {{"s0", samples}, {"s1", length}}));
}

// The module on texts of any length.
class OnTexts : public ExportedModel {
 public:
  using ExportedModel::ExportedModel;
  std::vector<DataPort> data(std::int64_t context) const override { return text_ports(context); }
};

TEST(ExportedModel, OneModelHasTheStepsOfAllSizes) {
  const OnTexts model(symbolic(), {.stages = 2});
  for (const auto& [samples, length] : {std::pair{2, 4}, {2, 6}, {5, 3}, {2, 4}}) {
    const OnTexts other(fixed(samples, length), {.begins = model.begins()});
    for (const int microbatches : {1, 3}) {
      const int batch = samples * microbatches;
      EXPECT_EQ(print(training_step(model, {batch, length, microbatches}, {})),
                print(training_step(other, {batch, length, microbatches}, {})));
      EXPECT_EQ(print(gradient_step(model, {batch, length, microbatches})), print(gradient_step(other, {batch, length, microbatches})));
      EXPECT_EQ(print(evaluation_step(model, {batch, length, microbatches})), print(evaluation_step(other, {batch, length, microbatches})));
    }
  }
}

// A file of others must neither use up the stack nor the range of a number.
TEST(ExportedModel, SizesThatCannotBeReadAreRefused) {
  EXPECT_EQ(evaluate_size("-(s0 - 7)//2*max(1, s0%3, 2)", {{"s0", 4}}), 4 - 2);
  for (const std::string& text :
       {std::string(100000, '(') + "s0", std::string(100000, '-') + "s0", std::string("-(-9223372036854775807 - 1)"),
        std::string("s0//(s0 - 4)"), std::string("s1"), std::string("s0 s0"), std::string("max()")})
    EXPECT_TRUE(test::message_of([&] { evaluate_size(text, {{"s0", 4}}); }).starts_with("the size {" + text.substr(0, 100)))
        << text.substr(0, 100);
}

TEST(ExportedModel, SeveralThreadsMayAskForSizes) {
  const OnTexts model(symbolic(), {.stages = 2});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int length = 2; length < 12; ++length) gradient_step(model, {4, length, 2});
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(print(gradient_step(model, {4, 7, 2})), print(gradient_step(OnTexts(fixed(2, 7), {.begins = model.begins()}), {4, 7, 2})));
}

TEST(ExportedModel, ValidationDrawsNothing) {
  const OnTexts model(symbolic(), {});
  EXPECT_NE(print(training_step(model, {4, 4, 2}, {})).find("= dropout("), std::string::npos);
  EXPECT_EQ(print(evaluation_step(model, {4, 4, 2})).find("dropout"), std::string::npos);
}

// One row of a text comes as often as the export has rows at least.
TEST(ExportedModel, LogitsArePrunedToWhatTheyNeed) {
  EXPECT_EQ(
      test::text_of(generation_step(OnTexts(symbolic(), {}), 4)),
      R"(graph @generation_step(%embed.weight: f32[5,3], %head.weight: f32[5,3], %tokens: i64[1,4]) -> (f32[5,3], f32[5,3], f32[1,4,5]) {state=2, outputs=["logits"]} {
  %0: f32[1,4,5] = accumulate(%tokens, %embed.weight, %head.weight) {microbatches=1, split=1, sequence=9} (%tokens: i64[1,4], %embed.weight: f32[5,3], %head.weight: f32[5,3]) -> (f32[1,4,5]) {
    %0: i64[2,4] = cat(%tokens, %tokens) {dim=0, sequence=0}
    %1: i64[2,4] = slice(%0) {dim=0, end=2, start=0, step=1, sequence=1}
    %2: f32[2,4,3] = embedding(%embed.weight, %1) {stage="0", origin="embed", sequence=2}
    %3: f32[2,4,5] = linear(%2, %head.weight) {stage="0", origin="head", sequence=7}
    %4: f32[1,4,5] = slice(%3) {dim=0, end=1, start=0, step=1, sequence=8}
    return %4
  }
  return %embed.weight, %head.weight, %0
}
)");
}

TEST(ExportedModel, MatricesDecayAndGroupsSayMore) {
  const ExportedModel usual(symbolic(), {}), grouped(symbolic(), {.groups = {1, 0}});
  EXPECT_TRUE(usual.parameters()[0].decay);
  EXPECT_EQ(grouped.parameters()[0].group, 1);
  EXPECT_EQ(grouped.parameters()[1].group, 0);
}

TEST(ExportedModel, F32MayBeF64) {
  const ExportedModel model(symbolic(), {.in_f64 = true});
  EXPECT_EQ(model.parameters()[0].type.text(), "f64[5,3]");
  EXPECT_EQ(print(model.graph()).find("f32["), std::string::npos);
}

TEST(ExportedModel, RefusesOtherSizes) {
  const OnTexts model(symbolic(), {}), two(fixed(2, 4), {});
  EXPECT_EQ(test::message_of([&] { gradient_step(model, {2, 4, 2}); }),
            "Tiny was exported for 2 to 64 along dim 0 of \"tokens\", not for 1\n"
            "  hint: take micro-batches of another size, or export it with an example of this one");
  EXPECT_EQ(test::message_of([&] { gradient_step(model, {4, 1, 2}); }),
            "Tiny was exported for 2 and more along dim 1 of \"tokens\", not for 1\n"
            "  hint: take micro-batches of another size, or export it with an example of this one");
  EXPECT_EQ(test::message_of([&] { gradient_step(two, {4, 5, 2}); }),
            "input \"targets\" of Tiny is i64[2,4] in the export, not i64[2,5]\n"
            "  hint: give it batches of that shape, or export the module with dynamic=True");
  EXPECT_EQ(test::message_of([&] { training_step(model, {4, 4, 2, BatchCount::port}, {}); }),
            "the model's loss is no sum over the targets of a batch, whichever way that is cut\n"
            "  so micro-batches of shapes of their own would weigh samples as the cut has it\n"
            "  hint: --set batch.planner=pad");
}

}  // namespace
}  // namespace penstock
