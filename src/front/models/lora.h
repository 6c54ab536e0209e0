// SPDX-License-Identifier: Apache-2.0
// Fine-tuning by adapters of low rank (LoRA, Hu et al. 2021, 2106.09685): a model's own parameters stay as they are, and beside each of its
// matrices W two small ones are trained, so that y = W x + alpha/rank * B (A x). B begins as zeros, so the model begins as it was.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/layers.h"
#include "penstock/trace.h"

namespace penstock {

struct LoraConfig {
  std::int64_t rank = 0;                // 0: there are no adapters, and everything is trained
  double scale = 1;                     // alpha / rank
  bool attention = false, mlp = false;  // which matrices have adapters

  // The configuration for matrices of one kind: without a rank where these have no adapters.
  LoraConfig of_attention() const { return attention ? *this : LoraConfig(); }
  LoraConfig of_mlp() const { return mlp ? *this : LoraConfig(); }
};
// The model options that lora_config reads, with their defaults.
std::map<std::string, double> lora_numbers();
std::map<std::string, std::string> lora_words();
// Throws Error for values that do not fit, also where alpha or the choice of matrices is given without a rank.
LoraConfig lora_config(const ModelOptions& options);

// The adapter of the matrix at `path`, of `in` to `out`: "<path>.lora_A.weight" [rank, in] and "<path>.lora_B.weight" [out, rank], the
// names and layouts of the PEFT library. Where the rank is 0 there is none. It lies split as the matrix does.
class LoraAdapter {
 public:
  // Throws Error where the rank is larger than the matrix's.
  LoraAdapter(ParameterList& specs, const std::string& path, const LoraConfig& config, const nn::LinearShape& shape);
  // y, the matrix's product with x, with the adapter's added.
  Tensor operator()(const Parameters& p, Tensor x, Tensor y) const;

 private:
  std::string path_;
  std::int64_t rank_;
  double scale_;
};

// A matrix with its adapter: an nn::Linear without a bias, or an nn::Conv1D.
template <class Matrix>
class Adapted {
 public:
  Adapted(ParameterList& specs, const std::string& path, const nn::LinearShape& shape, double deviation, const LoraConfig& config)
      : base_(specs, path, {shape.in, shape.out, shape.dims, false}, deviation), adapter_(specs, path, config, shape) {}
  Tensor operator()(const Parameters& p, Tensor x) const { return adapter_(p, x, base_(p, x)); }

 private:
  Matrix base_;
  LoraAdapter adapter_;
};
using AdaptedLinear = Adapted<nn::Linear>;
using AdaptedConv1D = Adapted<nn::Conv1D>;

// Lets nothing but adapters be trained, where there are any.
void freeze_base(ParameterList& specs, const LoraConfig& config);

}  // namespace penstock
