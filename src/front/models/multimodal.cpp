// SPDX-License-Identifier: Apache-2.0
// With input = "images" it is a language model with a vision encoder (vision_language.cpp). With input = "stretches", the default, it is
// the multimodal transformer of GraphPipe's evaluation (Jeon et al., ASPLOS 2025, appendix A.2): a transformer per modality, all joined at
// the end. Here the modalities are stretches of one text: it is cut into branches + 1 equal stretches, each branch reads one of them in
// both directions, and the head predicts the last one, byte for byte.
//
//   stretch 0 -> branch.0.embedding -> branch.0.layer.0 -> branch.0.layer.1 -> ... -+
//   stretch 1 -> branch.1.embedding -> branch.1.layer.0 -> branch.1.layer.1 -> ... -+-> head -> last stretch
//   ...                                                                            -+
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"
#include "models/transformer_layer.h"
#include "penstock/error.h"

namespace penstock {

namespace {

struct Config {
  std::int64_t branches, layers, width, heads, context, vocabulary;
  DType compute, master;
  std::int64_t stretch() const { return context / (branches + 1); }
};

Config read(const ModelOptions& options) {
  const Config c{options.size("branches"), options.size("layers"),     options.size("width"), options.size("heads"),
                 options.size("context"),  options.size("vocabulary"), options.compute,       options.master()};
  check_heads(c.width, c.heads);
  if (c.context % (c.branches + 1) != 0)
    throw Error(concat("context ", c.context, " is not divisible by ", c.branches + 1),
                {"each branch reads an equal stretch, the head predicts one"},
                concat("use a context of ", (c.stretch() + 1) * (c.branches + 1)));
  return c;
}

class Branch {
 public:
  Branch(ParameterList& specs, std::int64_t number, const Config& c)
      : number_(number),
        embedding_(specs, concat("branch.", number, ".embedding"), {c.vocabulary, c.width, {"vocab"}, {"embed"}}, 1),
        position_(specs, concat("branch.", number, ".position"), {c.stretch(), c.width, {"position"}, {"embed"}}, 0.1) {
    for (std::int64_t i = 0; i < c.layers; ++i) layers_.emplace_back(specs, concat("branch.", number, ".layer.", i), c.width, c.heads);
  }

  Tensor operator()(const Config& c, const Parameters& p, Tensor tokens, const BranchStages& stages) const {
    Tensor x;
    for (std::int64_t i = 0; i < c.layers; ++i) {
      const Stage stage(stages.of(number_, i));
      if (i == 0) x = embed(c, p, tokens);
      x = layers_[i](p, x, false);
    }
    return x;
  }

 private:
  Tensor embed(const Config& c, const Parameters& p, Tensor tokens) const {
    const Origin origin(embedding_.path());
    const Tensor own = slice(tokens, 1, number_ * c.stretch(), (number_ + 1) * c.stretch());
    return to(embedding_(p, own) + p[position_.at("weight")], c.compute);
  }

  std::int64_t number_;
  nn::Embedding embedding_, position_;
  std::vector<TransformerLayer> layers_;
};

class Multimodal : public Model {
 public:
  explicit Multimodal(const ModelOptions& options)
      : specs_(options.master()), c_(read(options)), stages_{c_.branches, c_.layers, options.stages} {
    check_stages("multimodal", options, stages_.most(), concat(c_.branches, " branches of ", c_.layers, " layers"));
    for (std::int64_t i = 0; i < c_.branches; ++i) branches_.emplace_back(specs_, i, c_);
    head_.emplace(dense(specs_, "head", {c_.branches * c_.width, c_.vocabulary, {{"embed", c_.branches}, {"vocab"}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool generates() const override { return false; }
  Tensor count(const Batch& batch) const override { return count_targets(predicted(batch.targets)); }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    std::vector<Tensor> ends;
    for (const Branch& branch : branches_) ends.push_back(branch(c_, p, batch.tokens, stages_));
    const Stage stage(stages_.join());
    const Origin origin("head");
    return token_loss((*head_)(p, cat(ends, 2)), predicted(batch.targets));
  }

 private:
  // The targets of the last stretch, which are one further than its tokens.
  Tensor predicted(Tensor targets) const {
    const std::int64_t begin = c_.branches * c_.stretch() - 1;
    return slice(targets, 1, begin, begin + c_.stretch());
  }

  ParameterList specs_;
  Config c_;
  BranchStages stages_;
  std::vector<Branch> branches_;
  std::optional<nn::Linear> head_;
};

}  // namespace

ModelEntry multimodal_model() {
  return {.summary =
              "transformers over stretches of a text, joined by a head that predicts the next stretch; or a vision encoder whose "
              "images stand in a text",
          .numbers = {{"branches", 4},
                      {"layers", 2},
                      {"width", 32},
                      {"heads", 2},
                      {"context", 80},
                      {"vocabulary", 256},
                      {"images", 8},
                      {"image_size", 16},
                      {"patch", 4},
                      {"image_tokens", 1},
                      {"vision_layers", 2},
                      {"vision_stages", 0}},
          .words = {{"input", "stretches"}},
          .make = [](const ModelOptions& options) -> std::unique_ptr<Model> {
            check_word("input", options.word("input"), {"stretches", "images"});
            if (options.word("input") == "images") return vision_language_model(options);
            return std::make_unique<Multimodal>(options);
          }};
}

}  // namespace penstock
