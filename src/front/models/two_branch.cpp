// SPDX-License-Identifier: Apache-2.0
// Two parallel branches over the same embedding, joined by a stage that also reads the embedding itself: parallel
// stages and skip edges in one small model.
//
//              +-> left 0 -> left 1 -> ... (per token) --+
//   embedding -+-> right 0 -> right 1 -> ... (attention) +-> join, head
//              +----------------- skip ------------------+
#include <cmath>

#include "base/text.h"
#include "models/layers.h"
#include "models/registry.h"

namespace penstock {

namespace {

// The stages of the branches; their numbers grow in the order of tracing. With four stages or more the branches have stages of their own,
// the left one the larger half; with two or three the left branch shares the embedding's.
struct Stages {
  std::int64_t left, right, all;  // number of stages of the left branch, of the right branch, and in all

  explicit Stages(std::int64_t stages) : left(stages < 4 ? 0 : (stages - 1) / 2), right(stages < 4 ? 0 : stages - 2 - left), all(stages) {}
  std::string of_left(std::int64_t i, std::int64_t layers) const { return stage_name(left == 0 ? 0 : spread(i, layers, left, 1)); }
  std::string of_right(std::int64_t i, std::int64_t layers) const {
    return stage_name(right == 0 ? std::min<std::int64_t>(1, all - 1) : spread(i, layers, right, 1 + left));
  }
  std::string join() const { return stage_name(all - 1); }
};

class TwoBranch : public Model {
 public:
  explicit TwoBranch(const ModelOptions& options)
      : specs_(options.master()),
        layers_(options.size("layers")),
        heads_(options.size("heads")),
        compute_(options.compute),
        stages_(options.stages),
        embedding_(specs_, "embedding", {options.size("vocabulary"), options.size("width"), {"vocab"}, {"embed"}}, 1) {
    const std::int64_t width = options.size("width");
    check_heads(width, heads_);
    check_stages("two-branch", options, 2 * layers_ + 2, concat("two branches of ", layers_, layers_ == 1 ? " layer" : " layers"));
    const nn::LayerDims hidden{{"embed"}, {"mlp"}}, qkv{{"embed"}, {"heads", 3, heads_}};
    for (std::int64_t i = 0; i < layers_; ++i) left_.emplace_back(dense(specs_, concat("left.", i), {width, width, hidden}));
    for (std::int64_t i = 0; i < layers_; ++i) {
      norms_.emplace_back(specs_, concat("right.", i, ".norm"), width, 1e-5, DimName{"embed"});
      qkv_.emplace_back(dense(specs_, concat("right.", i, ".qkv"), {width, 3 * width, qkv}));
    }
    join_.emplace(dense(specs_, "join", {3 * width, width, {{"embed", 3}, {"mlp"}}}));
    head_.emplace(dense(specs_, "head", {width, options.size("vocabulary"), {{"embed"}, {"vocab"}}}));
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool reads(const TextRows& rows) const override { return !rows.several && rows.inputs == 0; }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor x = logits(p, batch);
    const Stage stage(stages_.join());
    return token_loss(x, batch.targets);
  }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    const Tensor x = embed(p, batch.tokens);
    const Tensor left = left_branch(p, x), right = right_branch(p, x);
    const Stage stage(stages_.join());
    return (*head_)(p, x + gelu((*join_)(p, cat({x, left, right}, 2))));
  }

 private:
  Tensor embed(const Parameters& p, Tensor tokens) const {
    const Stage stage(stage_name(0));
    return to(embedding_(p, tokens), compute_);
  }

  Tensor left_branch(const Parameters& p, Tensor x) const {
    for (std::int64_t i = 0; i < layers_; ++i) {
      const Stage stage(stages_.of_left(i, layers_));
      x = x + gelu(left_[i](p, x));
    }
    return x;
  }

  Tensor right_branch(const Parameters& p, Tensor x) const {
    for (std::int64_t i = 0; i < layers_; ++i) {
      const Stage stage(stages_.of_right(i, layers_));
      const std::size_t at = i;
      x = x + causal_self_attention(qkv_[at](p, norms_[at](p, x)), heads_);
    }
    return x;
  }

  ParameterList specs_;
  std::int64_t layers_, heads_;
  DType compute_;
  Stages stages_;
  nn::Embedding embedding_;
  std::vector<nn::Linear> left_;
  std::vector<nn::LayerNorm> norms_;
  std::vector<nn::Linear> qkv_;
  std::optional<nn::Linear> join_, head_;
};

}  // namespace

ModelEntry two_branch_model() {
  return {.summary = "two parallel branches with skip edges, small",
          .numbers = {{"layers", 3}, {"width", 64}, {"heads", 4}, {"context", 128}, {"vocabulary", 256}},
          .make = [](const ModelOptions& options) { return std::make_unique<TwoBranch>(options); }};
}

}  // namespace penstock
