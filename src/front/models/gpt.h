// SPDX-License-Identifier: Apache-2.0
// The parts that GPT-2 shares with models that have something else in place of its MLPs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/layers.h"
#include "models/lora.h"
#include "penstock/trace.h"

namespace penstock {

struct GptConfig {
  std::string model;
  std::int64_t layers, width, heads, context, vocabulary;
  std::int64_t stages;       // of the layers, the first with the embedding
  std::int64_t head_shards;  // parts of the vocabulary behind the layers
  bool has_head_stages;      // whether each of these, and what joins them, is a stage of its own; else they are in the last of the layers'
  double dropout;
  bool tied;
  bool qkv_in_attention;  // AttentionCut::product_in_attention
  std::string gelu;
  bool rotary;  // positions turn queries and keys; else a table of learned positions is added to the embedding
  LoraConfig lora;
  DType compute, master;
  double deviation = 0.02;
  // Deviation of the projections that end a layer's two branches: all branches of all layers share the variance.
  double last_deviation() const;
  // One of each layer.
  AttentionCut attentions() const { return {layers, stages, qkv_in_attention}; }
  // The mark of the stage of this part, and behind the last one of what joins them.
  std::string head_stage(std::int64_t part) const;
};
// Throws Error for sizes that do not fit.
GptConfig gpt_config(const std::string& model, const ModelOptions& options);
// The options that gpt_config reads, with their defaults.
std::map<std::string, double> gpt_numbers();
std::map<std::string, std::string> gpt_words();

enum class Purpose : std::uint8_t { training, evaluation, generation };

// The second branch of a layer: between its norm and its dropout.
struct Fed {
  Tensor y;
  Tensor penalty;  // to be added to the summed loss, a scalar of the master dtype; may be none
};
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual Fed operator()(const Parameters& p, Tensor x, Purpose purpose) const = 0;
  // Whether each token's result depends on no other token.
  virtual bool is_by_token() const { return true; }
};
// Appends the parameters of layer `layer`'s branch, of this path, to `specs`.
using MakeFeedForward = std::function<std::unique_ptr<FeedForward>(ParameterList&, std::string path, std::int64_t layer)>;

std::unique_ptr<FeedForward> gpt_mlp(ParameterList& specs, const std::string& path, const GptConfig& config);
std::unique_ptr<Model> make_gpt(const GptConfig& config, const MakeFeedForward& make);

}  // namespace penstock
