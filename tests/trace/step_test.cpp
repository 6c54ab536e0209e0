// SPDX-License-Identifier: Apache-2.0
#include "penstock/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/support.h"
#include "ops/verify.h"
#include "support/errors.h"
#include "support/golden.h"

namespace penstock {
namespace {

using test::expect_golden;
using test::message_of;
using test::model;

std::unique_ptr<Model> small_mlp(int stages, DType compute = DType::f32) {
  return model("mlp", {{"layers", 2}, {"width", 4}, {"vocabulary", 8}}, stages, compute);
}

void expect_step(const std::string& name, const Graph& graph) {
  verify(graph);
  const std::string text = print(graph);
  EXPECT_EQ(print(parse_graph(text)), text);
  expect_golden("trace/" + name + ".txt", text);
}

TEST(Step, Training) {
  expect_step("training_step", training_step(*small_mlp(2), {4, 3, 2}, {}));
}
TEST(Step, TrainingWithSgdAndWithoutClipping) {
  OptimiserOptions options;
  options.name = "sgd";
  options.clip = 0;
  options.warmup = 0;
  expect_step("training_step_sgd", training_step(*small_mlp(1), {4, 3, 2}, options));
}
TEST(Step, Gradient) {
  expect_step("gradient_step", gradient_step(*small_mlp(2), {4, 3, 2}));
}
TEST(Step, Evaluation) {
  expect_step("evaluation_step", evaluation_step(*small_mlp(2), {4, 3, 2}));
}
TEST(Step, Generation) {
  expect_step("generation_step", generation_step(*small_mlp(2), 3));
}

TEST(Step, StateComesBackInPlace) {
  const Graph graph = training_step(*small_mlp(2), {4, 3, 2}, {});
  const int parameters = static_cast<int>(small_mlp(2)->parameters().size());
  ASSERT_EQ(graph.state, 3 * parameters + 1);
  for (int i = 0; i < graph.state; ++i) EXPECT_EQ(graph.type(graph.inputs[i]), graph.type(graph.outputs[i])) << i;
  ASSERT_EQ(graph.outputs.size(), static_cast<std::size_t>(graph.state) + graph.output_names.size());
  EXPECT_EQ(graph.output_names, (std::vector<std::string>{"loss", "gradient_norm", "learning_rate"}));
}

TEST(Step, EachOptimiserKeepsWhatItsRowSays) {
  for (const OptimiserInfo& row : optimisers()) {
    SCOPED_TRACE(row.name);
    OptimiserOptions options;
    options.name = row.name;
    const Graph graph = training_step(*small_mlp(2), {4, 3, 2}, options);
    verify(graph);
    for (int i = 0; i < graph.state; ++i) EXPECT_EQ(graph.type(graph.inputs[i]), graph.type(graph.outputs[i])) << i;
    for (const ParameterSpec& spec : small_mlp(2)->parameters())
      for (const auto& [kept, type] : row.kept(spec.type)) {
        const std::string state = concat(kept, ":", spec.name);
        const auto found = std::ranges::find(graph.inputs, state, [&](ValueId v) { return graph.values[v].name; });
        ASSERT_NE(found, graph.inputs.end()) << state;
        EXPECT_EQ(graph.type(*found), type) << state;
      }
  }
}

TEST(Step, F64RunsKeepEverythingInF64) {
  const Graph graph = training_step(*small_mlp(2, DType::f64), {4, 3, 2}, {});
  verify(graph);
  const auto names = graph.state;
  for (int i = 0; i + 1 < names; ++i) EXPECT_EQ(graph.type(graph.inputs[i]).dtype, DType::f64);
  EXPECT_EQ(graph.type(graph.outputs[names]).dtype, DType::f64);      // loss
  EXPECT_EQ(graph.type(graph.outputs[names + 1]).dtype, DType::f64);  // norm
}

TEST(Step, LowPrecisionKeepsMastersAndSumsInF32) {
  for (const std::string name : {"mlp", "gpt", "reference", "two-branch"}) {
    const auto low = model(name, {{"width", 16}, {"vocabulary", 8}}, 2, DType::bf16);
    const Graph graph = training_step(*low, {4, 3, 2}, {});
    verify(graph);
    for (const Op& op : graph.ops) {
      if (!op.body) continue;
      for (const ValueId result : op.results) EXPECT_EQ(graph.type(result).dtype, DType::f32);
    }
    for (int i = 0; i + 1 < graph.state; ++i) EXPECT_EQ(graph.type(graph.outputs[i]).dtype, DType::f32);
  }
}

TEST(Step, RefusesABatchThatIsNotDivisible) {
  EXPECT_EQ(message_of([] { gradient_step(*small_mlp(1), {9, 3, 4}); }),
            "a batch of 9 cannot be cut into 4 equal micro-batches\n"
            "  the first dimension of i64[9,3] is cut\n"
            "  hint: use 3 or 9 micro-batches, or a batch that is a multiple of 4");
}

TEST(Step, RefusesAnUnknownOptimiser) {
  OptimiserOptions options;
  options.name = "adamv";
  EXPECT_EQ(
      message_of([&] { training_step(*small_mlp(1), {4, 3, 2}, options); }),
      "no optimiser \"adamv\"\n  there are adamw, adam, nadam, sgd, nesterov, lion, adafactor and muon\n  hint: did you mean \"adamw\"?");
}

TEST(Step, RefusesNumbersThatGiveNoFiniteUpdate) {
  const auto said = [&](const auto& change) {
    OptimiserOptions options;
    change(options);
    return message_of([&] { training_step(*small_mlp(1), {4, 3, 2}, options); });
  };
  EXPECT_EQ(said([](OptimiserOptions& o) { o.numbers.beta1 = 1; }), "the optimiser's beta1 is 1.0\n  it must be at least 0 and below 1");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.numbers.beta2 = 1.5; }), "the optimiser's beta2 is 1.5\n  it must be at least 0 and below 1");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.groups = {{}, {.beta2 = 1}}; }),
            "the optimiser's beta2 is 1.0\n  it must be at least 0 and below 1");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.learning_rate = NAN; }), "the optimiser's learning_rate is nan\n  it must be at least 0");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.learning_rate = -1; }), "the optimiser's learning_rate is -1.0\n  it must be at least 0");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.numbers.eps = -1e-8; }), "the optimiser's eps is -1e-08\n  it must be at least 0");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.numbers.weight_decay = INFINITY; }),
            "the optimiser's weight_decay is inf\n  it must be at least 0");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.numbers.momentum = -1; }), "the optimiser's momentum is -1.0\n  it must be at least 0");
  EXPECT_EQ(said([](OptimiserOptions& o) { o.warmup = -1; }), "the optimiser's warmup is -1.0\n  it must be at least 0");
  for (const double clip : {-1.0, 1e-60})
    EXPECT_EQ(said([&](OptimiserOptions& o) { o.clip = clip; }),
              concat("the optimiser's clip is ", number(clip), "\n  it must be 0, which clips nothing, or no less than 1.2e-38"));
}

// A graph that adds the scaled mean of its gradients to a parameter.
Graph mean_update(const TensorType& type, const char* gradient = "gradient") {
  return trace("update",
               {{"parameter", type}, {gradient, type}, {"learning_rate", {DType::f64, {}}}, {"step", {DType::i64, {}}}, {"mean", type}},
               [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                 const Tensor mean = in[4] * 0.5 + in[1];
                 return {in[0] - mean * to(in[2], in[0].dtype()), mean};
               });
}

TEST(Step, ExportedUpdatesSayWhatIsKept) {
  const auto model = small_mlp(1);
  OptimiserOptions options;
  const std::vector<ParameterSpec> specs = model->parameters();
  for (const ParameterSpec& spec : specs) options.updates[spec.name] = mean_update(spec.type);
  const Graph graph = training_step(*model, {4, 3, 2}, options);
  verify(graph);
  ASSERT_EQ(graph.state, 2 * std::ssize(specs) + 1);
  for (std::size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(graph.values[graph.inputs[specs.size() + i]].name, "mean:" + specs[i].name);
  EXPECT_TRUE(is_kept_by_optimiser("mean:" + specs[0].name));
  EXPECT_FALSE(is_kept_by_optimiser(specs[0].name));
}

TEST(Step, RefusesUpdatesThatDoNotFit) {
  const auto model = small_mlp(1);
  OptimiserOptions options;
  const ParameterSpec first = model->parameters().front();
  const auto said = [&] { return message_of([&] { training_step(*model, {4, 3, 2}, options); }); };
  options.updates["another"] = mean_update(first.type);
  EXPECT_EQ(said(), concat("the optimiser has no update of parameter \"", first.name, "\""));
  options.updates[first.name] = mean_update({DType::f32, {3}});
  EXPECT_NE(said().find(concat(first.type.text(), ", reads parameter f32[3] as input 0\n  hint: it goes from parameter")),
            std::string::npos);
  options.updates[first.name] = mean_update(first.type, "gradients");
  EXPECT_NE(said().find("reads gradients"), std::string::npos);
  options.updates[first.name].inputs.resize(3);
  EXPECT_NE(said().find("has 3 inputs and 2 outputs"), std::string::npos);
  options.updates[first.name] = mean_update(first.type);
  std::swap(options.updates[first.name].outputs[0], options.updates[first.name].inputs[3]);
  EXPECT_NE(said().find("as input 3"), std::string::npos);
}

TEST(Step, ValidatesOnlyWhatItClips) {
  OptimiserOptions options;
  options.validated = true;
  const auto model = small_mlp(1);
  EXPECT_NE(print(training_step(*model, {4, 3, 2}, options)).find("= update_validated("), std::string::npos);
  options.clip = 0;
  EXPECT_EQ(print(training_step(*model, {4, 3, 2}, options)).find("= update_"), std::string::npos);
  options.name = "adam";
  training_step(*model, {4, 3, 2}, options);
  options.clip = 0.5;
  EXPECT_EQ(message_of([&] { training_step(*model, {4, 3, 2}, options); }),
            "the optimiser adam makes no update that can be validated\n  clip is 0.5\n  those do that are one op: adamw and sgd\n"
            "  hint: update at the end of a step (pipeline.update = \"end\"), or clip nothing (clip = 0)");
}

TEST(Step, RefusesNumbersThatTheOptimiserDoesNotTake) {
  OptimiserOptions options;
  options.name = "sgd";
  options.numbers.beta2 = 0.99;
  EXPECT_EQ(message_of([&] { training_step(*small_mlp(1), {4, 3, 2}, options); }),
            "the optimiser sgd takes no beta2, which is 0.99\n  it takes momentum, weight_decay\n"
            "  hint: leave out beta2, or take another optimiser");
}

TEST(Step, RefusesNamesOfDimsThatDoNotFit) {
  class Named : public Model {
   public:
    explicit Named(std::vector<DimName> dims) : dims_(std::move(dims)) {}
    std::vector<ParameterSpec> parameters() const override { return {{"w", {DType::f32, {4, 6}}, {}, true, dims_}}; }
    std::vector<DataPort> data(std::int64_t) const override { return {{"x", {}, DataPort::Kind::normal, 0, {}}}; }
    Tensor loss(const Parameters& p, const Batch&) const override { return sum(p["w"]); }

   private:
    std::vector<DimName> dims_;
  };
  const auto refused = [](std::vector<DimName> dims) { return message_of([&] { gradient_step(Named(std::move(dims)), {4, 0, 2}); }); };
  EXPECT_EQ(refused({}), "no error");
  EXPECT_EQ(refused({{""}, {"heads", 3, 2}}), "no error");
  EXPECT_EQ(refused({{"embed"}}),
            "parameter \"w\" has 2 dims, but 1 name for them\n  the type: f32[4,6]\n  the names: \"embed\"\n"
            "  hint: give one name for each dim, \"\" for a dim without one, or none at all");
  EXPECT_EQ(
      refused({{"embed"}, {"heads", 4}}),
      "parameter \"w\": dim 1, \"heads\", is not 4 equal blocks\n  the type: f32[4,6]\n  hint: blocks times units must divide the size");
  EXPECT_EQ(refused({{"embed", 1, 3}, {""}}),
            "parameter \"w\": dim 0, \"embed\", is not 1 equal block of 3 units\n  the type: f32[4,6]\n"
            "  hint: blocks times units must divide the size");
  EXPECT_EQ(
      refused({{"embed", 0}, {""}}),
      "parameter \"w\": dim 0, \"embed\", is not 0 equal blocks\n  the type: f32[4,6]\n  hint: blocks times units must divide the size");
  EXPECT_EQ(refused({{"embed"}, {"a,b"}}), "parameter \"w\": the name \"a,b\" of a dim has a comma");
}

TEST(Step, RefusesNamesDeclaredTwice) {
  class Clash : public Model {
    std::vector<ParameterSpec> parameters() const override { return {{"w", {}, {}}}; }
    std::vector<DataPort> data(std::int64_t) const override { return {{"w", {}, DataPort::Kind::normal, 0, {}}}; }
    Tensor loss(const Parameters& p, const Batch&) const override { return p["w"]; }
  };
  class Twice : public Model {
    std::vector<ParameterSpec> parameters() const override { return {{"w", {}, {}}, {"w", {}, {}}}; }
    Tensor loss(const Parameters& p, const Batch&) const override { return p["w"]; }
    Tensor logits(const Parameters& p, const Batch&) const override { return p["w"]; }
  };
  EXPECT_EQ(message_of([] { gradient_step(Clash(), {4, 3, 2}); }), "the model's data port \"w\" has the name of another input");
  EXPECT_EQ(message_of([] { gradient_step(Twice(), {4, 3, 2}); }), "the model declares parameter \"w\" twice");
}

}  // namespace
}  // namespace penstock
