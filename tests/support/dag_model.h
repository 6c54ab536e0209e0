// SPDX-License-Identifier: Apache-2.0
// A model for any DAG of stages, on which random tables are run.
#pragma once

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "penstock/schedule.h"
#include "penstock/trace.h"

namespace penstock::test {

inline constexpr std::int64_t kWidth = 8, kVocabulary = 12;
inline constexpr int kContext = 4;

// Every stage is a layer over the sum of its predecessors' outputs; the last stage is the head.
class DagModel : public Model {
 public:
  DagModel(StageShape shape, bool marked) : shape_(std::move(shape)), marked_(marked) {
    embedding_.emplace(specs_, "embedding", nn::EmbeddingShape{kVocabulary, kWidth}, 0.5);
    for (std::size_t s = 0; s < shape_.predecessors.size(); ++s)
      layers_.emplace_back(specs_, concat("layer.", s), nn::LinearShape{kWidth, kWidth}, 0.5);
    head_.emplace(specs_, "head", nn::LinearShape{kWidth, kVocabulary}, 0.5);
  }

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    const Tensor flat = reshape(logits(p, batch), {-1, kVocabulary});
    const std::optional<Stage> mark = stage(layers_.size() - 1);
    return cross_entropy(flat, reshape(batch.targets, {-1}));
  }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    std::vector<Tensor> outputs;
    for (std::size_t s = 0; s < layers_.size(); ++s) {
      const std::optional<Stage> mark = stage(s);
      std::vector<Tensor> inputs;
      for (std::int32_t from : shape_.predecessors[s]) inputs.push_back(outputs[static_cast<std::size_t>(from)]);
      const Tensor x = inputs.empty() ? (*embedding_)(p, batch.tokens) : add_n(inputs);
      outputs.push_back(tanh(layers_[s](p, tanh(x))));  // only the stage's own backward reads the inner tanh's result
    }
    const std::optional<Stage> mark = stage(layers_.size() - 1);
    return (*head_)(p, outputs.back());
  }

 private:
  std::optional<Stage> stage(std::size_t s) const {
    return marked_ ? std::optional<Stage>(std::in_place, std::to_string(s)) : std::nullopt;
  }

  StageShape shape_;
  bool marked_;
  ParameterList specs_{DType::f64};
  std::optional<nn::Embedding> embedding_;
  std::vector<nn::Linear> layers_;
  std::optional<nn::Linear> head_;
};

// Lets the last stage read all stages that no other reads, so that the loss depends on every stage.
inline StageShape with_one_end(StageShape shape) {
  const std::size_t last = shape.predecessors.size() - 1;
  std::vector<bool> read(last + 1);
  for (const auto& list : shape.predecessors)
    for (std::int32_t from : list) read[static_cast<std::size_t>(from)] = true;
  for (std::size_t s = 0; s < last; ++s)
    if (!read[s]) shape.predecessors[last].push_back(static_cast<std::int32_t>(s));
  std::sort(shape.predecessors[last].begin(), shape.predecessors[last].end());
  return shape;
}

}  // namespace penstock::test
