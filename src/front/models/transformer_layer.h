// SPDX-License-Identifier: Apache-2.0
// A transformer layer in three parts, attn, up and down, between which a planner may cut.
#pragma once

#include <string>
#include <vector>

#include "models/layers.h"
#include "penstock/trace.h"

namespace penstock {

class TransformerLayer {
 public:
  // Appends its parameters, "<path>.attn.norm.weight" and so on.
  TransformerLayer(ParameterList& specs, const std::string& path, std::int64_t width, std::int64_t heads);

  // x [batch, length, width], as its result.
  Tensor operator()(const Parameters& p, Tensor x, bool is_causal) const;

 private:
  std::string attn_, up_path_, down_path_;
  std::int64_t heads_;
  nn::LayerNorm attn_norm_;
  nn::Linear qkv_, out_;
  nn::LayerNorm up_norm_;
  nn::Linear up_, down_;
};

}  // namespace penstock
