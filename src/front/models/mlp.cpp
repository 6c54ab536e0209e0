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
      : stages_(options.stages),
        compute_(options.compute),
        embedding_(specs_, "embedding", options.size("vocabulary"), options.size("width"), 1, options.master(), {"vocab"}, {"embed"}) {
    const std::int64_t layers = options.size("layers"), width = options.size("width");
    check_stages("mlp", options, layers, concat(layers, layers == 1 ? " layer" : " layers"));
    for (std::int64_t i = 0; i < layers; ++i) {
      const bool is_last = i + 1 == layers;
      const LayerDims dims = is_last ? LayerDims{{"embed"}, {"vocab"}} : layer_dims(i, layers - 1);
      layers_.emplace_back(specs_, concat("layers.", i), width, is_last ? options.size("vocabulary") : width,
                           1 / std::sqrt(static_cast<double>(width)), true, options.master(), dims.in, dims.out);
    }
  }

  std::vector<ParameterSpec> parameters() const override { return specs_; }
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
  std::vector<ParameterSpec> specs_;
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
