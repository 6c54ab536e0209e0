// SPDX-License-Identifier: Apache-2.0
#include "models/transformer_layer.h"

namespace penstock {

TransformerLayer::TransformerLayer(ParameterList& specs, const std::string& path, std::int64_t width, std::int64_t heads)
    : attn_(path + ".attn"),
      up_path_(path + ".up"),
      down_path_(path + ".down"),
      heads_(heads),
      attn_norm_(specs, attn_ + ".norm", width, 1e-5, {"embed"}),
      qkv_(dense(specs, attn_ + ".qkv", {width, 3 * width, {{"embed"}, {"heads", 3, heads}}})),
      out_(dense(specs, attn_ + ".out", {width, width, {{"heads", 1, heads}, {"embed"}}})),
      up_norm_(specs, up_path_ + ".norm", width, 1e-5, {"embed"}),
      up_(dense(specs, up_path_, {width, 4 * width, {{"embed"}, {"mlp"}}})),
      down_(dense(specs, down_path_, {4 * width, width, {{"mlp"}, {"embed"}}})) {}

Tensor TransformerLayer::operator()(const Parameters& p, Tensor x, bool is_causal) const {
  {
    const Origin origin(attn_);
    x = x + out_(p, self_attention(qkv_(p, attn_norm_(p, x)), heads_, is_causal));
  }
  Tensor hidden;
  {
    const Origin origin(up_path_);
    hidden = gelu(up_(p, up_norm_(p, x)));
  }
  const Origin origin(down_path_);
  return x + down_(p, hidden);
}

}  // namespace penstock
