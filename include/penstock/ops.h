// SPDX-License-Identifier: Apache-2.0
// Tensors of a traced graph and the functions that compute with them. Names, operand order and
// semantics are ATen's. Each throws Error where shapes or dtypes do not fit.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/types.h"

namespace penstock {

class Builder;  // ops/builder.h

// A value of the graph being traced. Cheap to copy; valid while its builder lives.
class Tensor {
 public:
  Tensor() = default;  // makes no tensor: stands for an absent operand or gradient
  Tensor(Builder* builder, std::int32_t value) : builder_(builder), value_(value) {}

  explicit operator bool() const { return builder_ != nullptr; }  // whether there is a tensor
  // Its type, which the graph knows when it is traced.
  TensorType type() const;
  Shape shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  std::int64_t size(int dim) const;  // a negative dim counts from the end
  int rank() const { return static_cast<int>(shape().size()); }
  // The trace that it belongs to, and its number there.
  Builder* builder() const { return builder_; }
  std::int32_t value() const { return value_; }

 private:
  Builder* builder_ = nullptr;
  std::int32_t value_ = -1;
};

// The second operand of an op that takes a tensor or a number there; both convert to it.
struct TensorOrNumber {
  TensorOrNumber(Tensor x) : tensor(x) {}
  TensorOrNumber(double x) : number(x) {}
  Tensor tensor = {};                 // none: the number
  std::optional<double> number = {};  // none: the tensor
};

// Elementwise with broadcasting. Operands have equal dtypes: casts are explicit. A number takes the tensor's dtype
// and becomes the attribute "other".
Tensor add(Tensor a, TensorOrNumber b);
Tensor sub(Tensor a, TensorOrNumber b);
Tensor mul(Tensor a, TensorOrNumber b);
Tensor div(Tensor a, TensorOrNumber b);
Tensor pow(Tensor a, double exponent);
Tensor pow(Tensor a, Tensor exponent);  // of floating tensors
Tensor pow(double base, Tensor exponent);
Tensor maximum(Tensor a, Tensor b);
Tensor minimum(Tensor a, Tensor b);
inline Tensor operator+(Tensor a, TensorOrNumber b) {
  return add(a, b);
}
inline Tensor operator-(Tensor a, TensorOrNumber b) {
  return sub(a, b);
}
inline Tensor operator*(Tensor a, TensorOrNumber b) {
  return mul(a, b);
}
inline Tensor operator/(Tensor a, TensorOrNumber b) {
  return div(a, b);
}
inline Tensor operator*(double a, Tensor b) {
  return mul(b, a);
}

// Comparisons give bool.
Tensor eq(Tensor a, TensorOrNumber b);
Tensor ne(Tensor a, TensorOrNumber b);
Tensor lt(Tensor a, TensorOrNumber b);
Tensor le(Tensor a, TensorOrNumber b);
Tensor gt(Tensor a, TensorOrNumber b);
Tensor ge(Tensor a, TensorOrNumber b);
Tensor logical_and(Tensor a, Tensor b);
Tensor logical_or(Tensor a, Tensor b);
Tensor logical_not(Tensor a);
Tensor where(Tensor condition, Tensor a, Tensor b);

// These act elementwise on floating tensors.
Tensor neg(Tensor x);
Tensor abs(Tensor x);
Tensor exp(Tensor x);
Tensor log(Tensor x);
Tensor log1p(Tensor x);
Tensor sqrt(Tensor x);
Tensor rsqrt(Tensor x);
Tensor sin(Tensor x);
Tensor cos(Tensor x);
Tensor tanh(Tensor x);
Tensor sigmoid(Tensor x);
Tensor erf(Tensor x);
Tensor isfinite(Tensor x);  // bool; no gradient

// Activations. approximate: "none" (erf) or "tanh".
Tensor relu(Tensor x);
Tensor silu(Tensor x);
Tensor gelu(Tensor x, std::string_view approximate = "none");
// log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold.
Tensor softplus(Tensor x, double beta = 1, double threshold = 20);

// Limits, and values at places that a bool mask, which broadcasts with x, says. Where x is at a limit, its gradient is whole.
Tensor clamp(Tensor x, std::optional<double> min, std::optional<double> max = {});
Tensor masked_fill(Tensor x, Tensor mask, double value);
// x [..., rows, columns] with zeros above the diagonal (tril), or below it (triu); the n-th diagonal lies n columns to the right.
Tensor tril(Tensor x, std::int64_t diagonal = 0);
Tensor triu(Tensor x, std::int64_t diagonal = 0);

// Reductions go over `dims`, or over all dims where none are given.
Tensor sum(Tensor x, std::vector<std::int64_t> dims = {}, bool keepdim = false);
Tensor mean(Tensor x, std::vector<std::int64_t> dims = {}, bool keepdim = false);
Tensor amax(Tensor x, std::vector<std::int64_t> dims = {}, bool keepdim = false);
// The sums of the elements up to each along `dim`; of integers and bools in i64.
Tensor cumsum(Tensor x, int dim);
// The n-ary sum of tensors of one type (`add_n`): how cotangents and accumulators are joined. One operand is returned as it is.
Tensor add_n(const std::vector<Tensor>& parts);

// Shapes. One dim of reshape may be -1. A slice is [start, end) with a step; negative positions count from the end, and `end` is clipped.
Tensor reshape(Tensor x, Shape shape);
Tensor transpose(Tensor x, int dim0, int dim1);
Tensor permute(Tensor x, std::vector<std::int64_t> dims);
Tensor expand(Tensor x, Shape shape);
Tensor unsqueeze(Tensor x, int dim);
Tensor squeeze(Tensor x, int dim);
Tensor slice(Tensor x, int dim, std::int64_t start, std::int64_t end, std::int64_t step = 1);
Tensor select(Tensor x, int dim, std::int64_t index);
Tensor cat(const std::vector<Tensor>& parts, int dim);
std::vector<Tensor> split(Tensor x, std::int64_t size, int dim);
// Tensors of one type, one behind the other along a new dim.
Tensor stack(const std::vector<Tensor>& parts, int dim = 0);
// More places at the edges: `pad` has the widths before and behind the last dim, then those of the dim before it, and so on. mode:
// "constant" (a negative width takes places away), "reflect", "replicate" or "circular".
Tensor pad(Tensor x, std::vector<std::int64_t> pad, std::string_view mode = "constant", double value = 0);
Tensor to(Tensor x, DType dtype);  // x itself if it has that dtype
// x, through which no gradient flows.
Tensor detach(Tensor x);

// Places that indices name, i64. An index that names no place is an error where the op runs. gather: result[..i..] = x[..index[..i..]..]
// along dim, with as many dims in index as in x and sizes no larger but along dim; scatter is x with source[..i..] at x[..index[..i..]..],
// where one of several for a place stays, scatter_add adds all of them. Source is as index, of x's dtype.
Tensor gather(Tensor x, int dim, Tensor index);
Tensor scatter(Tensor x, int dim, Tensor index, Tensor source);
Tensor scatter_add(Tensor x, int dim, Tensor index, Tensor source);
// The places along dim that index [n] names; and x with those of `source`, which has n, added to them.
Tensor index_select(Tensor x, int dim, Tensor index);
Tensor index_add(Tensor x, int dim, Tensor index, Tensor source);
// indices i64 [...] -> i64 [..., num_classes], 1 at the place that each index names, else 0.
Tensor one_hot(Tensor indices, std::int64_t num_classes);
// Values in order along dim, and their places in x, i64; the places have no gradient. Equal values keep their order in sort. topk: the k
// largest or smallest.
struct ValuesAndIndices {
  Tensor values, indices;  // the second i64, of the shape of the first
};
ValuesAndIndices sort(Tensor x, int dim = -1, bool descending = false);
ValuesAndIndices topk(Tensor x, std::int64_t k, int dim = -1, bool largest = true, bool sorted = true);
// The place of the maximum along dim, or, of none, in x as one row; i64.
Tensor argmax(Tensor x, std::optional<int> dim = {}, bool keepdim = false);

// These make constants in the graph of `like`.
Tensor full(Tensor like, Shape shape, double value, DType dtype);
Tensor full_like(Tensor like, double value);
Tensor arange(Tensor like, std::int64_t end, DType dtype);

// Products. linear: x[..., in] * weight[out, in]^T (+ bias[out]). matmul broadcasts leading dims.
Tensor linear(Tensor x, Tensor weight, Tensor bias = {});
Tensor mm(Tensor a, Tensor b);
Tensor bmm(Tensor a, Tensor b);
Tensor addmm(Tensor bias, Tensor a, Tensor b);
Tensor matmul(Tensor a, Tensor b);
// Sums of products: a letter for each dim of each operand, "bij,bjk->bik". Without an arrow the result has the letters that stand once, in
// their order. One letter has one size; a letter stands once in an operand.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

// Sequences are [n, channels, length], images [n, channels, height, width], volumes [n, channels, depth, height, width]. Convolutions have
// a weight [out, channels / groups, ...places] (+ bias[out]), transposed ones [channels, out / groups, ...places], and zeros around the
// image. Strides, paddings and dilations are counted in places, a number for each dim or one for all.
struct ConvolutionOptions {
  std::vector<std::int64_t> stride = {1}, padding = {0}, dilation = {1};  // in places
  std::vector<std::int64_t> output_padding = {0};                         // of transposed ones
  std::int64_t groups = 1;                                                // of channels that are mapped by themselves
  bool transposed = false;                                                // the map back, as the gradient's
};
Tensor convolution(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
// The same of so many dims.
Tensor conv1d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor conv2d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor conv3d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor conv_transpose1d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor conv_transpose2d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor conv_transpose3d(Tensor x, Tensor weight, Tensor bias = {}, ConvolutionOptions options = {});
Tensor max_pool2d(Tensor x, std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0);
// Means of windows of sequences, images and volumes; padding, at most half of the kernel, counts as zeros or not at all. ceil_mode: a
// window at the end that is not whole counts too.
struct AvgPoolOptions {
  std::int64_t padding = 0;                          // in places, on each side
  bool ceil_mode = false, count_include_pad = true;  // as above; whether zeros count
};
Tensor avg_pool1d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options = {});
Tensor avg_pool2d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options = {});
Tensor avg_pool3d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options = {});
// x with so many places in each dim. mode: "nearest"; "linear", "bilinear" or "trilinear" for one, two or three dims; "bicubic" for two.
// align_corners (not of nearest): the corners' values stay where they are.
Tensor interpolate(Tensor x, std::vector<std::int64_t> size, std::string_view mode = "nearest", bool align_corners = false);

// Normalisation over the last dim, and softmaxes. Weight and bias [last], both or neither for layer_norm.
Tensor layer_norm(Tensor x, Tensor weight, Tensor bias, double eps = 1e-5);
Tensor rms_norm(Tensor x, Tensor weight, double eps = 1e-6);
// Normalises x [n, channels, height, width] by the mean and (biased) variance of each channel over the images and places of the
// micro-batch, as PyTorch's without running statistics. So values and gradients depend on how a batch is cut. Weight and bias are
// [channels].
Tensor batch_norm(Tensor x, Tensor weight, Tensor bias, double eps = 1e-5);
// x [n, channels, ...] by the mean and (biased) variance of each sample's groups of channels. Weight and bias [channels], or none.
Tensor group_norm(Tensor x, std::int64_t num_groups, Tensor weight = {}, Tensor bias = {}, double eps = 1e-5);
Tensor softmax(Tensor x, int dim);
Tensor log_softmax(Tensor x, int dim);

// q, k, v [batch, heads, length, head]. scale: default 1/sqrt(head).
Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, bool is_causal, std::optional<double> scale = {});
struct AttentionOptions {
  // Bool: which keys a query attends to (a query without any gets zeros); or of q's dtype: what is added to the scores, with a gradient of
  // its own, for which whole scores are computed again. Broadcasts to [batch, heads, queries, keys].
  Tensor attn_mask = {};
  // The share of the weights that is dropped, and what draws it, as in dropout: a key, and rows i64 [batch]. Whole scores are then
  // computed.
  double dropout_p = 0;
  Tensor key = {}, rows = {};
  bool is_causal = false;
  std::optional<double> scale = {};
  bool enable_gqa = false;  // k and v may have fewer heads, each for as many of q's
};
Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options);
// Attention in which query i of each row attends to keys ranges[row, i, 0] up to and without ranges[row, i, 1]; where there are none, its
// result is zero. So samples that stand one after the other in a row attend each to itself, and padding to nothing. ranges i64 [batch,
// queries, 2]; no query attends to more than `reach` keys. With a bias [heads, 2*reach - 1] the score of query i and key j is shifted by
// bias[head, j - i + reach - 1]; then |j - i| < reach. Ranges that keep none of this are an Error where the op runs. Queries that follow on
// each other and whose ranges begin alike are computed together, so a row takes as long as the samples that it holds. `is_causal` says that
// no query attends to keys behind it, which is held against the ranges where the op runs: then rows may be cut into slices.
struct RangesOptions {
  std::int64_t reach = 0;            // most keys of a query
  Tensor bias = {};                  // [heads, 2*reach - 1], or none
  std::optional<double> scale = {};  // none: 1/sqrt(head)
  bool is_causal = false;            // no query attends to keys behind it
};
Tensor attention_in_ranges(Tensor q, Tensor k, Tensor v, Tensor ranges, const RangesOptions& options);

// weight [rows, width], indices i64 [...] -> [..., width].
Tensor embedding(Tensor weight, Tensor indices);
// The sum of the rows of each bag: weight [rows, width], indices i64 [..., bag] -> [..., width].
Tensor embedding_bag(Tensor weight, Tensor indices);

// logits [n, classes], targets i64 [n] -> the sum of the losses, a scalar in f32 (f64 for f64 logits). Targets equal to
// ignore_index add nothing.
Tensor cross_entropy(Tensor logits, Tensor targets, std::int64_t ignore_index = -100);
// The same of logits whose classes are in several tensors, each with those from class `begin` on: [1, 2, n], the logsumexp of every row and
// the logit of its target, 0 where that is in another tensor. Joined are parts of all `classes` [parts, 2, n] (cat along dim 0).
Tensor cross_entropy_parts(Tensor logits, Tensor targets, std::int64_t begin);
Tensor cross_entropy_join(Tensor parts, Tensor targets, std::int64_t classes, std::int64_t ignore_index = -100);
// The sums of all elements' losses, scalars, of x and targets of one shape and dtype: squared differences, and absolute ones;
Tensor mse_loss(Tensor x, Tensor targets);
Tensor l1_loss(Tensor x, Tensor targets);
// the cross-entropy of probabilities x, and of logits x, where the loss of targets 1 may be weighed (pos_weight broadcasts with x);
Tensor binary_cross_entropy(Tensor x, Tensor targets);
Tensor binary_cross_entropy_with_logits(Tensor x, Tensor targets, Tensor pos_weight = {});
// and targets * (log(targets) - x), of logarithms x; log_target: targets are logarithms too.
Tensor kl_div(Tensor x, Tensor targets, bool log_target = false);

// Philox 4x32-10 (Salmon et al., SC 2011) keyed by `key`; element e of row r is word e % 4 of the block
// at counter (e / 4, rows[r]).
// rows i64 [x.size(0)]: the samples' indices in the step, so that masks do not depend on micro-batching.
// With positions i64 [x.size(0)], element e of row r is the element positions[r] * (elements of a row) + e of row rows[r]: x's rows are
// then parts of the samples' rows, and draw what they would draw in them.
Tensor dropout(Tensor x, double p, Tensor key, Tensor rows, Tensor positions = {});
// The key of one random op: a mix of the run's seed, the step and the op's number. All i64 scalars.
Tensor random_key(Tensor seed, Tensor step, std::int64_t op);

// The numbers of an optimiser's update, which groups of parameters may have for themselves (ParameterSpec::group).
struct ParameterGroup {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, momentum = 0.9;  // an optimiser reads those that it takes
};
// Optimiser updates act elementwise on one parameter and what is kept of it, and give the next values; learning_rate and step (i64, from 1)
// are scalars of the graph.
// Adam's bias-corrected update with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW.
struct AdamWState {
  Tensor parameter, first, second;  // the parameter, and the means of gradients and of their squares
};
AdamWState adamw(const AdamWState& now, Tensor gradient, Tensor learning_rate, Tensor step, const ParameterGroup& numbers);
// v' = momentum*v + (g + weight_decay*p); p' = p - lr*v'.
struct SgdState {
  Tensor parameter, velocity;  // the parameter, and v of the formula
};
SgdState sgd(const SgdState& now, Tensor gradient, Tensor learning_rate, const ParameterGroup& numbers);

// Collectives along an axis of the mesh of devices, for models that say themselves what the members of the axis do. All members run the
// same graph, each with values of its own: parameters and data are the same on all of them, and what is made of them differs behind
// reduce_scatter, all_to_all and keep_member. The comments say what member i gets. Gradients are those of the sum of all members' losses by
// the member's own values. Sums are of f32, f64, i32 or i64.
// A parameter stays the same on all members only where its gradient does (Error where a step is compiled), so a model reads it as
// reduce_gradient(p, axis) wherever it is used with values that differ. What a step gives out is what the first member has.
struct MeshAxis {
  std::string name;       // as the configuration's mesh has it
  std::int64_t size = 1;  // members
};
Tensor all_reduce(Tensor x, const MeshAxis& axis);                      // the sum of all members' x
Tensor all_gather(Tensor x, int dim, const MeshAxis& axis);             // all members' x, one after the other along dim
Tensor reduce_scatter(Tensor x, int dim, const MeshAxis& axis);         // piece i of the sum, which is cut along dim into equal pieces
Tensor broadcast(Tensor x, std::int64_t root, const MeshAxis& axis);    // the x of member `root`
Tensor all_to_all(Tensor x, int dim, const MeshAxis& axis);             // piece i along dim of each member's x, one after the other
Tensor keep_member(Tensor x, std::int64_t root, const MeshAxis& axis);  // its own x where i is `root`, else zeros
// x itself, which is the same on all members: one tensor that they share. So its gradient is the sum of the members' gradients.
Tensor reduce_gradient(Tensor x, const MeshAxis& axis);

// x, with a wish: over each axis of the mesh to which one of these names is mapped it lies split along that dim, and else whole. One name
// for each dim, "" for a dim without one. Its gradient gets the same wish. It changes no value, and nothing at all where there are no axes.
// `causal`: false where tokens of x need some behind them, as an encoder's do. Then slices of a sequence have it whole.
Tensor constrain(Tensor x, const std::vector<std::string>& names, bool causal = true);
// Ends a stage: x passes unchanged; what x was computed from belongs to the stage before the mark.
Tensor stage_boundary(Tensor x);
// Calls an op that Penstock does not know, by its name in the dispatcher; it is not differentiable. penstock/op.h has another call(), which
// takes attributes and a gradient.
std::vector<Tensor> call(std::string_view name, const std::vector<Tensor>& operands, const std::vector<TensorType>& types);

}  // namespace penstock
