// SPDX-License-Identifier: Apache-2.0
// The names that the models give to the dims of their parameters.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "base/text.h"
#include "models/support.h"

namespace penstock {
namespace {

using test::model;

std::string shown(const DimName& dim) {
  if (dim.name.empty()) return "-";
  const std::string blocks = dim.outer == 1 ? "" : concat(dim.outer, "x"), units = dim.units == 0 ? "" : concat(":", dim.units);
  return blocks + dim.name + units;
}

// "c_attn.weight: embed 3xheads:4", a line for each parameter; numbers in paths become N, and equal lines stand once.
std::string dims_of(const Model& model) {
  std::string out;
  std::set<std::string> lines;
  for (const ParameterSpec& spec : model.parameters()) {
    const std::string path = std::regex_replace(spec.name, std::regex("\\.[0-9]+(?=\\.)"), ".N");
    const std::string line = concat(path, ": ", spec.dims.empty() ? "none" : join(spec.dims, " ", shown), "\n");
    if (lines.insert(line).second) out += line;
  }
  return out;
}

TEST(Dims, Gpt) {
  const std::string blocks =
      "wte.weight: vocab embed\nwpe.weight: position embed\n"
      "h.N.ln_1.weight: embed\nh.N.ln_1.bias: embed\n"
      "h.N.attn.c_attn.weight: embed 3xheads:4\nh.N.attn.c_attn.bias: 3xheads:4\n"
      "h.N.attn.c_proj.weight: heads:4 embed\nh.N.attn.c_proj.bias: embed\n"
      "h.N.ln_2.weight: embed\nh.N.ln_2.bias: embed\n"
      "h.N.mlp.c_fc.weight: embed mlp\nh.N.mlp.c_fc.bias: mlp\n"
      "h.N.mlp.c_proj.weight: mlp embed\nh.N.mlp.c_proj.bias: embed\n"
      "ln_f.weight: embed\nln_f.bias: embed\n";
  EXPECT_EQ(dims_of(*model("gpt")), blocks);
  EXPECT_EQ(dims_of(*model("gpt", {{"tied", 0}})), blocks + "lm_head.weight: vocab embed\n");
}

TEST(Dims, Moe) {
  const std::string moe = dims_of(*model("moe"));
  EXPECT_EQ(moe.substr(moe.find("h.N.mlp.gate")),
            "h.N.mlp.gate.weight: - embed\n"
            "h.N.mlp.experts.c_fc.weight: experts embed mlp\nh.N.mlp.experts.c_fc.bias: experts mlp\n"
            "h.N.mlp.experts.c_proj.weight: experts mlp embed\nh.N.mlp.experts.c_proj.bias: experts embed\n"
            "ln_f.weight: embed\nln_f.bias: embed\n");
}

TEST(Dims, T5) {
  const auto attention = [](const std::string& path) {
    return path + ".q.weight: heads:4 embed\n" + path + ".k.weight: heads:4 embed\n" + path + ".v.weight: heads:4 embed\n" + path +
           ".o.weight: embed heads:4\n";
  };
  const auto stack = [&](const std::string& name, const std::string& cross) {
    const std::string layer = name + ".block.N.layer.N";
    return attention(layer + ".SelfAttention") + layer + ".SelfAttention.relative_attention_bias.weight: buckets heads:4\n" + layer +
           ".layer_norm.weight: embed\n" + cross + layer + ".DenseReluDense.wi.weight: mlp embed\n" + layer +
           ".DenseReluDense.wo.weight: embed mlp\n" + name + ".final_layer_norm.weight: embed\n";
  };
  EXPECT_EQ(dims_of(*model("t5")),
            "shared.weight: vocab embed\n" + stack("encoder", "") + stack("decoder", attention("decoder.block.N.layer.N.EncDecAttention")));
}

TEST(Dims, Reference) {
  EXPECT_EQ(dims_of(*model("reference")),
            "embedding.weight: vocab embed\n"
            "blocks.N.norm1.weight: embed\nblocks.N.norm1.bias: embed\nblocks.N.norm2.weight: embed\nblocks.N.norm2.bias: embed\n"
            "blocks.N.qkv.weight: 3xheads:4 embed\nblocks.N.qkv.bias: 3xheads:4\n"
            "blocks.N.out.weight: embed heads:4\nblocks.N.out.bias: embed\n"
            "blocks.N.mlp.N.weight: mlp embed\nblocks.N.mlp.N.bias: mlp\nblocks.N.mlp.N.weight: embed mlp\nblocks.N.mlp.N.bias: embed\n"
            "head.weight: vocab embed\nhead.bias: vocab\n");
}

// The hidden layers go in pairs, with "mlp" between them; one without another, and the last, have "embed".
TEST(Dims, Mlp) {
  const std::string start = "embedding.weight: vocab embed\n", end = "layers.N.weight: vocab embed\nlayers.N.bias: vocab\n";
  const std::string pair = "layers.N.weight: mlp embed\nlayers.N.bias: mlp\nlayers.N.weight: embed mlp\nlayers.N.bias: embed\n";
  EXPECT_EQ(dims_of(*model("mlp", {{"layers", 1}})), start + end);
  EXPECT_EQ(dims_of(*model("mlp", {{"layers", 2}})), start + "layers.N.weight: embed embed\nlayers.N.bias: embed\n" + end);
  EXPECT_EQ(dims_of(*model("mlp", {{"layers", 3}})), start + pair + end);
  EXPECT_EQ(dims_of(*model("mlp", {{"layers", 4}})), start + pair + "layers.N.weight: embed embed\n" + end);
}

TEST(Dims, Branches) {
  EXPECT_EQ(dims_of(*model("two-branch")),
            "embedding.weight: vocab embed\nleft.N.weight: mlp embed\nleft.N.bias: mlp\n"
            "right.N.norm.weight: embed\nright.N.norm.bias: embed\nright.N.qkv.weight: 3xheads:4 embed\nright.N.qkv.bias: 3xheads:4\n"
            "join.weight: mlp 3xembed\njoin.bias: mlp\nhead.weight: vocab embed\nhead.bias: vocab\n");
  EXPECT_EQ(dims_of(*model("multimodal")),
            "branch.N.embedding.weight: vocab embed\nbranch.N.position.weight: position embed\n"
            "branch.N.layer.N.attn.norm.weight: embed\nbranch.N.layer.N.attn.norm.bias: embed\n"
            "branch.N.layer.N.attn.qkv.weight: 3xheads:2 embed\nbranch.N.layer.N.attn.qkv.bias: 3xheads:2\n"
            "branch.N.layer.N.attn.out.weight: embed heads:2\nbranch.N.layer.N.attn.out.bias: embed\n"
            "branch.N.layer.N.up.norm.weight: embed\nbranch.N.layer.N.up.norm.bias: embed\n"
            "branch.N.layer.N.up.weight: mlp embed\nbranch.N.layer.N.up.bias: mlp\n"
            "branch.N.layer.N.down.weight: embed mlp\nbranch.N.layer.N.down.bias: embed\n"
            "head.weight: vocab 4xembed\nhead.bias: vocab\n");
}

TEST(Dims, LayersOfFeatures) {
  EXPECT_EQ(dims_of(*model("candle-uno")),
            "branch.N.layer.N.weight: mlp embed\nbranch.N.layer.N.weight: embed mlp\nhead.weight: - 7xembed\n");
  EXPECT_EQ(dims_of(*model("dlrm")),
            "emb_l.N.weight: rows columns\nbot_l.N.N.weight: mlp embed\nbot_l.N.N.weight: embed mlp\n"
            "top_l.N.weight: mlp -\ntop_l.N.weight: embed mlp\ntop_l.N.weight: mlp embed\ntop_l.N.weight: - embed\n");
}

TEST(Dims, Images) {
  for (const ParameterSpec& spec : model("resnet")->parameters()) EXPECT_TRUE(spec.dims.empty()) << spec.name;
  const std::string vgg = dims_of(*model("vgg"));
  EXPECT_EQ(vgg.substr(vgg.find("classifier")),
            "classifier.N.weight: mlp -\nclassifier.N.bias: mlp\nclassifier.N.weight: embed mlp\nclassifier.N.bias: embed\n"
            "classifier.N.weight: - embed\nclassifier.N.bias: none\n");
}

// Where names that are split over one axis by default meet in one parameter, only one of its dims could be split.
TEST(Dims, NoParameterHasTwoNamesOfOneAxis) {
  const std::set<std::string> tensor = {"heads", "mlp", "vocab"};
  for (const auto& [name, entry] : builtin_models()) {
    if (!entry.suffixes.empty()) continue;  // a file says what it is
    for (const ParameterSpec& spec : model(name)->parameters()) {
      std::int64_t split = 0;
      for (const DimName& dim : spec.dims) split += tensor.contains(dim.name) ? 1 : 0;
      EXPECT_LE(split, 1) << name << ": " << spec.name;
    }
  }
}

}  // namespace
}  // namespace penstock
