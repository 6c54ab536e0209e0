// SPDX-License-Identifier: Apache-2.0
// A model of one's own, with every command of Penstock:
//   custom_model train --set model.name=trigram --actors 2 --schedule 1f1b
#include "penstock/run.h"

using namespace penstock;

// Predicts a byte from the two before it.
class Trigram : public Model {
 public:
  explicit Trigram(const ModelOptions& options)
      : cut_(options.stages > 1),
        specs_(options.master()),
        embedding_(specs_, "embedding", {256, options.size("width")}, 1.0),
        mix_(specs_, "mix", {2 * options.size("width"), options.size("width")}, 0.05),
        head_(specs_, "head", {options.size("width"), 256}, 0.1) {}

  std::vector<ParameterSpec> parameters() const override { return specs_.list; }

  Tensor logits(const Parameters& p, const Batch& batch) const override {
    const Tensor x = embedding_(p, batch.tokens);
    const Tensor first = slice(x, 1, 0, 1), before = cat({first, slice(x, 1, 0, -1)}, 1);
    const Tensor hidden = gelu(mix_(p, cat({before, x}, 2)));
    return head_(p, cut_ ? stage_boundary(hidden) : hidden);
  }

  Tensor loss(const Parameters& p, const Batch& batch) const override {
    return cross_entropy(reshape(logits(p, batch), {-1, 256}), reshape(batch.targets, {-1}));
  }

 private:
  bool cut_;
  ParameterList specs_;
  nn::Embedding embedding_;
  nn::Linear mix_, head_;
};

int main(int argc, char** argv) {
  const ModelEntry trigram{.summary = "a byte from the two before it, in one stage or two",
                           .numbers = {{"width", 64}, {"context", 128}},
                           .words = {},
                           .make = [](const ModelOptions& options) { return std::make_unique<Trigram>(options); }};
  return run(argc, argv, {{"trigram", trigram}});
}
