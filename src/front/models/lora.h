// Fine-tuning by adapters of low rank (LoRA, Hu et al. 2021, 2106.09685): a model's own parameters stay as they are, and beside each of its
// matrices W two small ones are trained, so that y = W x + alpha/rank * B (A x). B begins as zeros, so the model begins as it was.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "models/layers.h"
#include "penstock/trace.h"

namespace penstock {

struct LoraConfig {
  std::int64_t rank = 0;                // 0: there are no adapters, and everything is trained
  double scale = 1;                     // alpha / rank
  bool attention = false, mlp = false;  // which matrices have adapters
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
  LoraAdapter(std::vector<ParameterSpec>& specs, const std::string& path, const LoraConfig& config, std::int64_t in, std::int64_t out,
              DType dtype, const LayerDims& dims);
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
  // `adapted`: whether this matrix is one of those that have adapters.
  Adapted(std::vector<ParameterSpec>& specs, const std::string& path, std::int64_t in, std::int64_t out, double deviation, DType dtype,
          const LayerDims& dims, const LoraConfig& config, bool adapted)
      : base_(matrix(specs, path, in, out, deviation, dtype, dims)),
        adapter_(specs, path, adapted ? config : LoraConfig(), in, out, dtype, dims) {}
  Tensor operator()(const Parameters& p, Tensor x) const { return adapter_(p, x, base_(p, x)); }

 private:
  static Matrix matrix(std::vector<ParameterSpec>& specs, const std::string& path, std::int64_t in, std::int64_t out, double deviation,
                       DType dtype, const LayerDims& dims) {
    if constexpr (std::is_same_v<Matrix, nn::Linear>)
      return {specs, path, in, out, deviation, false, dtype, dims.in, dims.out};
    else
      return {specs, path, in, out, deviation, dtype, dims.in, dims.out};
  }

  Matrix base_;
  LoraAdapter adapter_;
};
using AdaptedLinear = Adapted<nn::Linear>;
using AdaptedConv1D = Adapted<nn::Conv1D>;

// Lets nothing but adapters be trained, where there are any.
void freeze_base(std::vector<ParameterSpec>& specs, const LoraConfig& config);

}  // namespace penstock
