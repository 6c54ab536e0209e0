// SPDX-License-Identifier: Apache-2.0
// The reference model on which Penstock is measured against torch.distributed.pipelining: a pre-norm transformer without positions, in the
// layouts of torch.nn, with a linear head.
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"

namespace penstock {

namespace {

struct Config {
  std::int64_t layers, width, heads, vocabulary, stages;
  DType compute, master;
};

Config read(const ModelOptions& options) {
  const Config c{options.size("layers"), options.size("width"), options.size("heads"), options.size("vocabulary"),
                 options.stages,         options.compute,       options.master()};
  check_heads(c.width, c.heads);
  check_stages("reference", options, c.layers, concat(c.layers, c.layers == 1 ? " layer" : " layers"));
  return c;
}

class ReferenceLayer {
 public:
  ReferenceLayer(ParameterList& specs, std::int64_t number, const Config& c)
      : path_(concat("blocks.", number)),
        norm1_(specs, path_ + ".norm1", c.width, 1e-5, {"embed"}),
        norm2_(specs, path_ + ".norm2", c.width, 1e-5, {"embed"}),
        qkv_(dense(specs, path_ + ".qkv", {c.width, 3 * c.width, {{"embed"}, {"heads", 3, c.heads}}})),
        out_(dense(specs, path_ + ".out", {c.width, c.width, {{"heads", 1, c.heads}, {"embed"}}})),
        mlp_0_(dense(specs, path_ + ".mlp.0", {c.width, 4 * c.width, {{"embed"}, {"mlp"}}})),
        mlp_2_(dense(specs, path_ + ".mlp.2", {4 * c.width, c.width, {{"mlp"}, {"embed"}}})) {}

  Tensor operator()(const Config& c, const Parameters& p, Tensor x) const {
    const Origin origin(path_);
    x = residual(x + out_(p, causal_self_attention(qkv_(p, norm1_(p, x)), c.heads)));
    return residual(x + mlp_2_(p, gelu(mlp_0_(p, norm2_(p, x)))));
  }

 private:
  std::string path_;
  nn::LayerNorm norm1_, norm2_;
  nn::Linear qkv_, out_, mlp_0_, mlp_2_;
};

class Reference : public Model {
 public:
  explicit Reference(const ModelOptions& options)
      : specs_(options.master()), c_(read(options)), embedding_(specs_, "embedding", {c_.vocabulary, c_.width, {"vocab"}, {"embed"}}, 1) {
    for (std::int64_t i = 0; i < c_.layers; ++i) layers_.emplace_back(specs_, i, c_);
    head_.emplace(dense(specs_, "head", {c_.width, c_.vocabulary, {{"embed"}, {"vocab"}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool reads(const TextRows& rows) const override { return !rows.several && rows.inputs == 0; }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor x = logits(p, batch);
    const Stage stage(stage_name(c_.stages - 1));
    return token_loss(x, batch.targets);
  }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    Tensor x;
    for (std::int64_t i = 0; i < c_.layers; ++i) {
      const Stage stage(stage_name(spread(i, c_.layers, c_.stages)));
      if (i == 0) x = residual(to(embedding_(p, batch.tokens), c_.compute));
      x = layers_[i](c_, p, x);
    }
    const Stage stage(stage_name(c_.stages - 1));
    return (*head_)(p, x);
  }

 private:
  ParameterList specs_;
  Config c_;
  nn::Embedding embedding_;
  std::vector<ReferenceLayer> layers_;
  std::optional<nn::Linear> head_;
};

}  // namespace

ModelEntry reference_model() {
  return {.summary = "the transformer of the speed comparison with torch.distributed.pipelining",
          .numbers = {{"layers", 8}, {"width", 256}, {"heads", 4}, {"context", 128}, {"vocabulary", 2048}},
          .make = [](const ModelOptions& options) { return std::make_unique<Reference>(options); }};
}

}  // namespace penstock
