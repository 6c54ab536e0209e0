// SPDX-License-Identifier: Apache-2.0
// A model of ops that no other model has, in one step and through pipelines.
#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "penstock/op.h"
#include "support/errors.h"
#include "torch/run_step.h"

namespace penstock {
namespace {

// By its name in the dispatcher, with a gradient of our own.
Tensor asinh(Tensor x) {
  const Vjp vjp = [](const VjpArguments& a) { return std::vector{a.cotangents[0] * rsqrt(a.operands[0] * a.operands[0] + 1)}; };
  return call("aten::asinh", {x}, {x.type()}, {}, vjp)[0];
}

// Images are convolved, pooled and resized in the first stage; their places are tokens, which attend to each other, in the second.
class ManyOps : public Model {
 public:
  explicit ManyOps(const ModelOptions& options)
      : cut_(options.stages > 1),
        dropout_(options.number("dropout")),
        convolution_(specs_, "convolution", {kChannels, 2 * kChannels, 3, 1, 2, 2, 2}, 0.3),
        group_norm_(specs_, "group_norm", {4, 2 * kChannels}),
        norm_(specs_, "norm", kWidth),
        attention_(specs_, "attention", {.width = kWidth, .heads = 4, .kv_heads = 2, .embed = "embed", .heads_dim = "heads"}, 0.3),
        mlp_(specs_, "mlp", {.width = kWidth, .hidden = 12, .activation = "silu", .gated = true, .dims = {{"embed"}, {"mlp"}}}, 0.3) {
    for (const auto& [name, shape] : std::map<std::string, Shape>{
             {"back", {2 * kChannels, kWidth, 2, 1}}, {"bias", {4, kTokens, kTokens}}, {"classes", {kWidth, kClasses}}})
      specs_.list.push_back({name, {DType::f64, shape}, {Initialiser::Kind::normal, 0.3}});
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  std::vector<DataPort> data(std::int64_t) const override {
    return {{"image", {DType::f64, {kChannels, 7, 6}}, DataPort::Kind::normal, 0, {}},
            {"label", {DType::i64, {}}, DataPort::Kind::indices, kClasses, {}}};
  }
  Tensor count(const Batch& batch) const override { return full(batch.rows, {}, static_cast<double>(batch.rows.size(0)), DType::i64); }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    Tensor x = tokens(p, batch["image"]);
    if (cut_) x = stage_boundary(x);
    const Origin origin("tail");
    return tail(p, x, batch);
  }

 private:
  static constexpr std::int64_t kChannels = 4, kWidth = 8, kClasses = 5, kTokens = 24;

  Tensor tokens(const Parameters& p, Tensor image) const {
    Tensor x = softplus(group_norm_(p, convolution_(p, pad(image, {1, 1, 1, 0}, "reflect"))), 2, 10);
    x = avg_pool2d(x, 3, 2, {.padding = 1, .ceil_mode = true});
    x = conv_transpose2d(interpolate(x, {3, 4}, "bilinear"), p["back"], {}, {.stride = {2}});
    x = slice(clamp(x, -1, 1.5), 3, 0, -3);
    return transpose(reshape(x, {x.size(0), kWidth, kTokens}), 1, 2);
  }

  Tensor tail(const Parameters& p, Tensor x, const Batch& batch) const {
    AttentionOptions options{.attn_mask = p["bias"], .is_causal = true};
    if (dropout_ > 0 && batch.training) {
      options.dropout_p = dropout_;
      options.key = random_key(batch.seed, batch.step, 1);
      options.rows = batch.rows;
    }
    x = x + attention_(p, norm_(p, x), options);
    x = asinh(x + mlp_(p, x));
    const auto [largest, places] = topk(x, 3, 1);
    const Tensor kept = scatter_add(detach(x) * 0.1, 1, places, largest), sorted = sort(kept, -2, true).values;
    const Tensor pooled = stack({sum(gather(x, 1, places), {1}), sum(slice(sorted, 1, 0, 5), {1}), select(cumsum(x, 1), 1, -2)}, 1);
    const Tensor logits = einsum("nkw,wc->nc", {pooled, p["classes"]}) * 0.3, classes = to(one_hot(batch["label"], kClasses), DType::f64);
    return cross_entropy(logits, batch["label"]) + binary_cross_entropy_with_logits(logits, classes) +
           0.1 * kl_div(log_softmax(logits, 1), classes) + 0.1 * l1_loss(tril(x), x * 0.5);
  }

  bool cut_;
  double dropout_;
  ParameterList specs_{DType::f64};
  nn::Conv2d convolution_;
  nn::GroupNorm group_norm_;
  nn::RMSNorm norm_;
  nn::Attention attention_;
  nn::MLP mlp_;
};

ModelRegistry models() {
  return {{"many-ops",
           {.summary = "ops that no other model has", .numbers = {{"dropout", 0}}, .words = {}, .make = [](const ModelOptions& options) {
              return std::make_unique<ManyOps>(options);
            }}}};
}

Config config_for(const std::vector<std::string>& settings, const std::string& mesh = "") {
  std::vector<Override> overrides;
  for (const char* setting : {"model.name=many-ops", "batch=12", "microbatches=3", "dtype=f64"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  if (!mesh.empty())
    for (Override& axis : parse_mesh(mesh)) overrides.push_back(std::move(axis));
  return load_config("", overrides, models());
}

StepGradients gradients_of(const Config& config, const Prepared& prepared) {
  return test::step_of(config, prepared, compile_gradients(config, prepared));
}

TEST(ManyOps, GiveTheSameGradientsThroughPipelines) {
  for (const char* dropout : {"dropout=0", "dropout=0.3"}) {
    const Config whole = config_for({dropout});
    const StepGradients expected = gradients_of(whole, prepare_sequential(whole, models(), 1));
    for (const auto& [name, gradient] : expected.gradients) {
      double largest = 0;
      for (const double value : gradient) largest = std::max(largest, std::abs(value));
      EXPECT_GT(largest, 1e-6) << name;
    }
    for (const char* schedule : {"schedule=gpipe", "schedule=1f1b", "schedule=zb-h1"})
      for (const char* data : {"pipeline.data=1", "pipeline.data=2"}) {
        SCOPED_TRACE(concat(dropout, " ", schedule, " ", data));
        const Config config = config_for({dropout, schedule, "actors=2", data});
        const Comparison comparison = compare(gradients_of(config, prepare(config, models())), expected);
        EXPECT_LE(comparison.loss_difference, 1e-10);
        EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
      }
  }
}

// Members of an axis share the heads of q, k and v, and the hidden units.
TEST(ManyOps, GiveTheSameGradientsOverMeshes) {
  for (const char* dropout : {"dropout=0", "dropout=0.3"}) {
    const Config whole = config_for({dropout});
    const StepGradients expected = gradients_of(whole, prepare_sequential(whole, models(), 1));
    for (const std::string mesh : {"tensor=2", "pipe=2,tensor=2", "pipe=2,data=2,tensor=2"}) {
      SCOPED_TRACE(concat(dropout, " ", mesh));
      const Config config = config_for({dropout, "schedule=1f1b"}, mesh);
      const Comparison comparison = compare(gradients_of(config, prepare(config, models())), expected);
      EXPECT_LE(comparison.loss_difference, 1e-10);
      EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
    }
  }
}

TEST(ManyOps, ModulesRefuseSizesThatDoNotFit) {
  ParameterList specs(DType::f32);
  const auto message = [&](auto make) { return test::message_of([&] { make(); }); };
  EXPECT_EQ(message([&] { nn::Attention(specs, "a", {.width = 8, .heads = 3}, 1); }),
            "Attention \"a\": 3 heads do not divide a width of 8");
  EXPECT_EQ(message([&] { nn::Attention(specs, "a", {.width = 8, .heads = 4, .kv_heads = 3}, 1); }),
            "Attention \"a\": 3 heads of k and v do not divide 4 of q");
  EXPECT_EQ(message([&] { nn::MLP(specs, "m", {.width = 8, .hidden = 9, .activation = "gelus"}, 1); }),
            "MLP \"m\": no activation \"gelus\"\n  hint: did you mean \"gelu\"?");
  EXPECT_EQ(message([&] { nn::Conv2d(specs, "c", {.in = 4, .out = 4, .kernel = 1, .groups = 3}, 1); }),
            "Conv2d \"c\": 4 channels do not divide into 3 groups");
}

}  // namespace
}  // namespace penstock
