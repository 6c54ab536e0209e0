// SPDX-License-Identifier: Apache-2.0
// A program with a model that says no more than it must: its parameters and its loss.
#include "penstock/run.h"

using namespace penstock;

class Bigram : public Model {
 public:
  explicit Bigram(const ModelOptions& options) : specs_(options.master()), table_(specs_, "table", {256, 256}, 0.1) {}
  std::vector<ParameterSpec> parameters() const override { return specs_.list; }
  Tensor loss(const Parameters& p, const Batch& batch) const override {
    return cross_entropy(reshape(table_(p, batch.tokens), {-1, 256}), reshape(batch.targets, {-1}));
  }

 private:
  ParameterList specs_;
  nn::Embedding table_;
};

int main(int argc, char** argv) {
  const ModelEntry bigram{
      .summary = "a byte from the one before it", .numbers = {{"context", 16}}, .words = {}, .make = [](const ModelOptions& options) {
        return std::make_unique<Bigram>(options);
      }};
  return run(argc, argv, {{"bigram", bigram}});
}
