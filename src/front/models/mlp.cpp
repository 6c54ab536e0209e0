// SPDX-License-Identifier: Apache-2.0
// A perceptron over embedded tokens: the smallest model that trains, with linear stage marks.
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"

namespace penstock {

namespace {

class Mlp : public Model {
 public:
  explicit Mlp(const ModelOptions& options)
      : specs_(options.master()),
        stages_(options.stages),
        compute_(options.compute),
        embedding_(specs_, "embedding", {options.size("vocabulary"), options.size("width"), {"vocab"}, {"embed"}}, 1) {
    const std::int64_t layers = options.size("layers"), width = options.size("width");
    check_stages("mlp", options, layers, concat(layers, layers == 1 ? " layer" : " layers"));
    for (std::int64_t i = 0; i < layers; ++i) {
      const bool is_last = i + 1 == layers;
      const nn::LayerDims dims = is_last ? nn::LayerDims{{"embed"}, {"vocab"}} : layer_dims(i, layers - 1);
      layers_.emplace_back(specs_, concat("layers.", i), nn::LinearShape{width, is_last ? options.size("vocabulary") : width, dims},
                           1 / std::sqrt(static_cast<double>(width)));
    }
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool reads(const TextRows& rows) const override { return !rows.several && rows.inputs == 0; }

  Tensor loss(const Parameters& p, const Batch& batch) const override { return token_loss(logits(p, batch), batch.targets); }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    const std::int64_t layers = std::ssize(layers_);
    Tensor x = to(embedding_(p, batch.tokens), compute_);
    for (std::int64_t i = 0; i < layers; ++i) {
      if (i > 0) x = relu(x);
      if (i > 0 && spread(i, layers, stages_) != spread(i - 1, layers, stages_)) x = stage_boundary(x);
      x = layers_[i](p, x);
    }
    return x;
  }

 private:
  ParameterList specs_;
  std::int64_t stages_;
  DType compute_;
  nn::Embedding embedding_;
  std::vector<nn::Linear> layers_;
};

}  // namespace

ModelEntry mlp_model() {
  return {.summary = "a perceptron from each token to the next, with linear stage marks",
          .numbers = {{"layers", 2}, {"width", 64}, {"context", 128}, {"vocabulary", 256}},
          .make = [](const ModelOptions& options) { return std::make_unique<Mlp>(options); }};
}

}  // namespace penstock
