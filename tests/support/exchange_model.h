// SPDX-License-Identifier: Apache-2.0
// A model with collectives of its own along an axis of the mesh: a perceptron over embedded tokens whose hidden activations the members
// exchange, by each collective there is, along dims whose pieces are no multiples of what devices move.
#pragma once

#include <memory>

#include "penstock/trace.h"

namespace penstock::test {

class ExchangeModel : public Model {
 public:
  explicit ExchangeModel(const ModelOptions& options)
      : axis_{options.word("axis"), options.size("members")},
        reduces_(options.number("reduces") != 0),
        cut_(options.stages > 1),
        specs_(options.master()),
        embedding_(specs_, "embedding", {options.size("vocabulary"), options.size("width")}, 1),
        first_(specs_, "first", {options.size("width"), options.size("width")}, 0.5),
        second_(specs_, "second", {options.size("width"), options.size("width")}, 0.5),
        head_(specs_, "head", {options.size("width"), options.size("vocabulary")}, 0.3) {}

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  bool generates() const override { return false; }

  Tensor loss(const Parameters& given, const Batch& batch) const override {
    Parameters p;
    for (const auto& [name, tensor] : given.entries()) p.set(name, reduces_ ? reduce_gradient(tensor, axis_) : tensor);
    Tensor x = gelu(first_(p, embedding_(p, batch.tokens)));
    x = all_to_all(x + keep_member(x, axis_.size - 1, axis_), 2, axis_);
    if (cut_) x = stage_boundary(x);
    const Origin origin("second");
    x = gelu(second_(p, x));
    x = x + all_gather(reduce_scatter(x, 1, axis_), 1, axis_) + 0.5 * broadcast(sin(x), axis_.size - 1, axis_);
    const Tensor losses = cross_entropy(reshape(head_(p, x), {-1, head_classes()}), reshape(batch.targets, {-1}));
    // The losses differ, and the first member's counts double.
    return all_reduce(losses, axis_) * (1.0 / static_cast<double>(axis_.size)) * (1.0 / static_cast<double>(axis_.size)) +
           keep_member(losses, 0, axis_);
  }

 private:
  std::int64_t head_classes() const { return specs_.list.back().type.shape[0]; }

  ParameterList specs_;
  MeshAxis axis_;
  bool reduces_, cut_;
  nn::Embedding embedding_;
  nn::Linear first_, second_, head_;
};

inline ModelRegistry exchange_models() {
  return {{"exchange",
           {.summary = "a perceptron whose hidden activations the members of an axis exchange",
            .numbers = {{"width", 12}, {"context", 12}, {"vocabulary", 32}, {"members", 2}, {"reduces", 1}},
            .words = {{"axis", "tensor"}},
            .make = [](const ModelOptions& options) { return std::make_unique<ExchangeModel>(options); }}}};
}

}  // namespace penstock::test
