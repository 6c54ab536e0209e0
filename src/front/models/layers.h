// SPDX-License-Identifier: Apache-2.0
// Layers, stage marks and checks that the models share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "penstock/trace.h"

namespace penstock {

// Attention with the heads side by side in the last dimension: qkv [batch, length, 3*width] -> [batch, length, width].
Tensor self_attention(Tensor qkv, std::int64_t heads, bool is_causal);
Tensor causal_self_attention(Tensor qkv, std::int64_t heads);

// x [batch, length, width] with the names of its dims: the stream to which a transformer's layers add. `causal`: see constrain().
Tensor residual(Tensor x, bool causal = true);

// The summed loss of logits [batch, length, vocabulary], computed in at least f32.
Tensor token_loss(Tensor logits, Tensor targets);
// The part in it of logits of the classes from `begin` on: [1, 2, batch * length] (cross_entropy_parts).
Tensor part_of_token_loss(Tensor logits, Tensor targets, std::int64_t begin);

// The mark of stage `number`, as a Stage takes it.
std::string stage_name(std::int64_t number);
// The stage of part i of `parts`, when the parts are spread evenly over the stages first..first+stages-1.
std::int64_t spread(std::int64_t i, std::int64_t parts, std::int64_t stages, std::int64_t first = 0);

// make() with all that it does in this stage.
template <class Make>
auto in_stage(const std::string& name, Make&& make) {
  const Stage stage(name);
  return make();
}

// The stages of an attention and of what is around it. `attention` may have nothing but attention, and so run anywhere; or also the product
// that gives queries, keys and values. Then the weights have a copy on each of the stage's actors: their owner refreshes it, and their
// gradients are added up, once a step. Of each micro-batch the product's input crosses, a third of what it gives. (HelixPipe's weights
// travel with every micro-batch: in one round, which has one for each actor, as much is sent.)
struct AttentionStages {
  std::string before, product, attention, behind;
};

// A row of attentions in so many stages. Where these are 2a+g for a attentions in g equal groups, each attention has a stage of its own: in
// a group stage 2i+1 is its attention i, and stage 2i all between attentions i-1 and i. One group of all is HelixPipe's (2507.00394); one
// for each actor leaves every layer's parameters on one (SlimPipe's exchange, 2504.14519).
struct AttentionCut {
  std::int64_t attentions, stages;
  bool product_in_attention;  // where attention has a stage of its own

  bool is_apart() const { return groups() > 0; }
  // The stages of attention i; where it is not apart all are `whole`, its layer's.
  AttentionStages of(std::int64_t i, std::int64_t whole) const;

 private:
  std::int64_t groups() const;  // 0: attention is not apart
};

// The names of the dims of layer i of a row of `layers` layers of one width. They go in pairs, between whose layers lies "mlp", and around
// which lies "embed"; a layer without another has "embed" on both sides.
nn::LayerDims layer_dims(std::int64_t i, std::int64_t layers);

// Stages for parallel branches of `layers` layers and the join after them. With more stages than branches each branch has stages of its
// own, and the join has the last one; otherwise the branches are spread over all stages, and the join is with the last of them. Numbers
// grow in the order branch 0, branch 1, ..., join.
struct BranchStages {
  std::int64_t branches, layers, stages;
  std::string of(std::int64_t branch, std::int64_t layer) const;
  std::string join() const { return stage_name(stages - 1); }
  std::int64_t most() const { return branches * layers + 1; }
};

// A layer with a bias. torch.nn.Linear draws uniformly from +-1/sqrt(in); this is the normal distribution of the same variance.
nn::Linear dense(ParameterList& specs, std::string path, const nn::LinearShape& shape);
// A layer without bias that a relu follows (initialised after He et al. 2015), and one for the end of a model.
nn::Linear relu_layer(ParameterList& specs, std::string path, nn::LinearShape shape);
nn::Linear last_layer(ParameterList& specs, std::string path, nn::LinearShape shape);

// One of parallel branches: so many relu layers of one width, each in its stage, named "<path><layer>".
class DenseBranch {
 public:
  DenseBranch(ParameterList& specs, const std::string& path, std::int64_t layers, std::int64_t width);
  // `number`: of the branch. The input is cast in the first layer's stage.
  Tensor operator()(const Parameters& p, Tensor input, DType compute, const BranchStages& stages, std::int64_t number) const;

 private:
  std::vector<nn::Linear> layers_;
};

// [batch, length, width] to [batch, heads, length, width/heads], and back.
Tensor split_heads(Tensor x, std::int64_t heads);
Tensor join_heads(Tensor x);
// Queries, keys and values in heads, of qkv [batch, length, 3*width].
std::vector<Tensor> split_qkv(Tensor qkv, std::int64_t heads);

// Turns pairs of elements of x [batch, heads, length, size] by angles that grow with a token's position, so that queries and keys multiply
// by the distance between them (rotary position embedding: Su et al. 2021, 2104.09864). Element i is paired with i + size/2, and the pair
// turns by position * 10000^(-2i/size). `positions` [batch, length] of whole numbers; none: 0, 1, .. of the length. `size` is even.
Tensor rotary(Tensor x, Tensor positions);

inline constexpr std::int64_t kColours = 3;
inline constexpr double kImageSpread = 5;  // of values from black to white, which are about 0
// The ports "label", a class of each sample, and "image" [kColours, size, size], the class's pattern under noise.
std::vector<DataPort> image_ports(std::int64_t size, std::int64_t classes, DType dtype);

// Throws Error unless 1 <= options.stages <= most; `what` says what limits them: "4 layers".
void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what);
// The same for a model whose attentions may also be apart.
void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what, const AttentionCut& cut);
// Throws Error unless the option's value is one of `known`.
void check_word(std::string_view option, const std::string& value, const std::vector<std::string>& known);
// Throws Error unless width is divisible by heads.
void check_heads(std::int64_t width, std::int64_t heads);

}  // namespace penstock
