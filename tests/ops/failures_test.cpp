// SPDX-License-Identifier: Apache-2.0
// Every family of ops refuses operands and attributes that do not fit.
#include <gtest/gtest.h>

#include "ops/builder.h"
#include "ops/optimiser.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

class Failures : public testing::Test {
 protected:
  Tensor f32(Shape shape) { return input(std::move(shape), DType::f32); }
  Tensor bf16(Shape shape) { return input(std::move(shape), DType::bf16); }
  Tensor i64(Shape shape) { return input(std::move(shape), DType::i64); }
  Tensor boolean(Shape shape) { return input(std::move(shape), DType::boolean); }

  Builder builder{"f"};

 private:
  Tensor input(Shape shape, DType dtype) { return {&builder, builder.graph.add_input({dtype, std::move(shape)}, "x").value}; }
};

// The first line of the message: the details are the same for all (operands, attributes, place).
template <class Action>
std::string rule_of(Action&& action) {
  const std::string message = message_of(action);
  return message.substr(0, message.find('\n'));
}

TEST_F(Failures, TellOperandsAttributesAndPlace) {
  builder.marks.origin = "h.0.attn";
  builder.marks.stage = "first";
  EXPECT_EQ(message_of([&] { f32({2, 3}) + bf16({3}); }),
            "add: operands are f32 and bf16\n  operands: f32[2,3], bf16[3]\n  made in h.0.attn\n  stage first\n"
            "  hint: casts are explicit: use to()");
  EXPECT_EQ(message_of([&] { select(f32({2, 3}), 1, 3); }),
            "select: index is outside the dim\n  operands: f32[2,3]\n  attributes: dim=1, index=3\n  made in h.0.attn\n  stage first");
  EXPECT_TRUE(builder.graph.ops.empty()) << "a failed op leaves nothing behind";
}

TEST_F(Failures, Elementwise) {
  EXPECT_EQ(rule_of([&] { f32({2, 3}) * f32({2}); }), "mul: shapes do not broadcast: 3 and 2 at dim 1");
  EXPECT_EQ(rule_of([&] { boolean({2}) - boolean({2}); }), "sub: operands must be numbers, not bool");
  EXPECT_EQ(rule_of([&] { i64({2}) / 2.0; }), "div: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { maximum(f32({2}), i64({2})); }), "maximum: operands are f32 and i64");
  EXPECT_EQ(rule_of([&] { eq(f32({2}), i64({2})); }), "eq: operands are f32 and i64");
  EXPECT_EQ(rule_of([&] { logical_and(f32({2}), boolean({2})); }), "logical_and: operands must be bool");
  EXPECT_EQ(rule_of([&] { where(f32({2}), f32({2}), f32({2})); }), "where: the condition must be bool");
  EXPECT_EQ(rule_of([&] { where(boolean({2}), f32({2}), bf16({2})); }), "where: operands are f32 and bf16");
  EXPECT_EQ(rule_of([&] { exp(i64({2})); }), "exp: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { emit("tanh_backward", {f32({2}), f32({3})}); }), "tanh_backward: operands must have one type");
  EXPECT_EQ(rule_of([&] { emit("add", {f32({2})}); }), "add has no attribute \"other\"");
  EXPECT_EQ(rule_of([&] { emit("add", {f32({2}), f32({2}), f32({2})}); }), "add: takes 1 to 2 operands, not 3");
}

TEST_F(Failures, Constraints) {
  EXPECT_EQ(rule_of([&] { emit("constrain", {f32({2, 3})}, {{"dims", std::string("batch")}}); }), "constrain: 1 name for 2 dims");
  EXPECT_EQ(rule_of([&] { emit("constrain", {f32({2})}); }), "constrain has no attribute \"dims\"");
}

TEST_F(Failures, Activations) {
  EXPECT_EQ(rule_of([&] { gelu(f32({2}), "fast"); }), "gelu: approximate is \"fast\"");
  EXPECT_EQ(rule_of([&] { relu(boolean({2})); }), "relu: operand 0 must be floating, not bool");
  EXPECT_EQ(rule_of([&] { emit("gelu_backward", {f32({2})}); }), "gelu_backward: takes 2 operands, not 1");
}

TEST_F(Failures, Reductions) {
  EXPECT_EQ(rule_of([&] { sum(f32({2, 3}), {2}); }), "sum: dim is outside the 2 dims of the operand");
  EXPECT_EQ(rule_of([&] { sum(f32({2, 3}), {1, -1}); }), "sum: a dim stands twice");
  EXPECT_EQ(rule_of([&] { mean(i64({2})); }), "mean: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { amax(f32({2, 0}), {1}); }), "amax: nothing has no maximum");
  EXPECT_EQ(rule_of([&] { cumsum(f32({2, 3}), 2); }), "cumsum: dim is outside the 2 dims of the operand");
  EXPECT_EQ(cumsum(boolean({2}), 0).dtype(), DType::i64);
  EXPECT_EQ(rule_of([&] { add_n({f32({2}), f32({3})}); }), "add_n: operands must have one type");
  EXPECT_EQ(rule_of([&] { add_n({}); }), "add_n: takes at least one operand");
  EXPECT_EQ(sum(boolean({2})).dtype(), DType::i64);
}

TEST_F(Failures, Shapes) {
  EXPECT_EQ(rule_of([&] { reshape(f32({2, 3}), {4, 2}); }), "reshape: the operand has 6 elements, the shape 8");
  EXPECT_EQ(rule_of([&] { reshape(f32({2, 3}), {4, -1}); }), "reshape: a size is negative");
  EXPECT_EQ(rule_of([&] { reshape(f32({0, 3}), {0, -1}); }), "reshape: a size is negative");
  EXPECT_EQ(rule_of([&] { reshape(f32({2}), {std::int64_t{1} << 40, std::int64_t{1} << 40}); }),
            "reshape: the shape has more than 2^48 elements");
  EXPECT_EQ(rule_of([&] { transpose(f32({2, 3}), 0, 2); }), "transpose: dim1 is outside the 2 dims of the operand");
  EXPECT_EQ(rule_of([&] { permute(f32({2, 3}), {0, 0}); }), "permute: dims must name every dim of the operand once");
  EXPECT_EQ(rule_of([&] { expand(f32({2, 3}), {4, 3}); }), "expand: only dims of size 1 expand");
  EXPECT_EQ(rule_of([&] { expand(f32({2, 3}), {3}); }), "expand: the operand has more dims than the size");
  EXPECT_EQ(rule_of([&] { unsqueeze(f32({2}), 2); }), "unsqueeze: dim is outside the 2 dims of the operand");
  EXPECT_EQ(rule_of([&] { squeeze(f32({2}), 0); }), "squeeze: only a dim of size 1 can be squeezed");
  EXPECT_EQ(rule_of([&] { slice(f32({2}), 1, 0, 1); }), "slice: dim is outside the 1 dims of the operand");
  EXPECT_EQ(rule_of([&] { slice(f32({2}), 0, 0, 1, 0); }), "slice: step must be at least 1");
  EXPECT_EQ(rule_of([&] { cat({f32({2, 3}), f32({2})}, 0); }), "cat: operands must have equally many dims");
  EXPECT_EQ(rule_of([&] { cat({f32({2, 3}), f32({2, 4})}, 0); }), "cat: sizes may differ along dim only");
  EXPECT_EQ(rule_of([&] { cat({f32({2}), i64({2})}, 0); }), "cat: operands are f32 and i64");
  EXPECT_EQ(rule_of([&] { cat({}, 0); }), "cat: takes at least one operand");
  EXPECT_EQ(rule_of([&] { split(f32({4}), 0, 0); }), "split: split_size must be at least 1");
  EXPECT_EQ(rule_of([&] { split(f32({0}), 1, 0); }), "split: a split has 1 to 65536 pieces");
  EXPECT_EQ(rule_of([&] { full(f32({}), {-1}, 0, DType::f32); }), "full: a size is negative");
  EXPECT_EQ(rule_of([&] { arange(f32({}), 3, DType::boolean); }), "arange: counts in numbers, not bool");
  const Attributes sliced = {{"dim", 0}, {"start", 0}, {"end", 2}, {"step", 1}, {"input_sizes", Shape{4}}};
  EXPECT_EQ(rule_of([&] { emit("slice_backward", {f32({3})}, sliced); }), "slice_backward: the operand is not such a slice of input_sizes");
}

TEST_F(Failures, SlicesAreClippedAsInATen) {
  const auto rows = [&](std::int64_t start, std::int64_t end, std::int64_t step) { return slice(f32({5}), 0, start, end, step).size(0); };
  EXPECT_EQ(rows(1, 100, 1), 4);
  EXPECT_EQ(rows(-2, 5, 1), 2);
  EXPECT_EQ(rows(0, -1, 2), 2);
  EXPECT_EQ(rows(4, 2, 1), 0);
}

TEST_F(Failures, Products) {
  EXPECT_EQ(rule_of([&] { linear(f32({2, 3}), f32({4, 2})); }), "linear: needs x[..., in] and weight[out, in]");
  EXPECT_EQ(rule_of([&] { linear(f32({2, 3}), f32({4, 3}), f32({3})); }), "linear: needs bias[out]");
  EXPECT_EQ(rule_of([&] { linear(f32({2, 3}), bf16({4, 3})); }), "linear: operands are f32 and bf16");
  EXPECT_EQ(rule_of([&] { mm(f32({2, 3}), f32({2, 3})); }), "mm: needs a[n, k] and b[k, m]");
  EXPECT_EQ(rule_of([&] { mm(i64({2, 3}), i64({3, 2})); }), "mm: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { bmm(f32({2, 3, 4}), f32({3, 4, 2})); }), "bmm: needs a[batch, n, k] and b[batch, k, m]");
  EXPECT_EQ(rule_of([&] { addmm(f32({3}), f32({2, 3}), f32({3, 2})); }), "addmm: shapes do not broadcast: 3 and 2 at dim 1");
  EXPECT_EQ(rule_of([&] { addmm(f32({5, 2, 2}), f32({2, 3}), f32({3, 2})); }), "addmm: the first operand must broadcast to [n, m]");
  EXPECT_EQ(rule_of([&] { matmul(f32({3}), f32({3, 2})); }), "matmul: needs a[..., n, k] and b[..., k, m]");
  EXPECT_EQ(rule_of([&] { matmul(f32({2, 2, 3}), f32({3, 3, 2})); }), "matmul: shapes do not broadcast: 2 and 3 at dim 0");
}

TEST_F(Failures, Images) {
  const auto convolve = [&](Shape x, Shape weight, std::int64_t stride = 1, std::int64_t padding = 0) {
    return rule_of([&] { conv2d(f32(x), f32(weight), {}, {.stride = {stride}, .padding = {padding}}); });
  };
  EXPECT_EQ(convolve({3, 4, 4}, {2, 3, 1, 1}), "conv2d: needs x[n, channels, height, width], not f32[3,4,4]");
  EXPECT_EQ(convolve({1, 3, 0, 4}, {2, 3, 1, 1}), "convolution: an image has no empty dim");
  EXPECT_EQ(convolve({1, 3, 4, 4}, {2, 4, 1, 1}), "convolution: x has 3 channels, the weight is for 4");
  EXPECT_EQ(convolve({1, 3, 4, 4}, {2, 3, 1}), "convolution: needs a weight of x's dtype and as many dims");
  EXPECT_EQ(convolve({1, 3, 4, 4}, {2, 3, 1, 1}, 0), "convolution: kernel and stride must be at least 1");
  EXPECT_EQ(convolve({1, 3, 4, 4}, {2, 3, 1, 1}, 1, -1), "convolution: padding must be at least 0");
  EXPECT_EQ(convolve({1, 3, 4, 4}, {2, 3, 5, 5}), "convolution: the window is larger than the padded image");
  EXPECT_EQ(rule_of([&] { conv2d(f32({1, 3, 4, 4}), f32({2, 3, 1, 1}), f32({3})); }), "convolution: needs bias[out] of x's dtype");
  const Attributes window = {{"stride", Shape{1, 1}}, {"padding", Shape{0, 0}}, {"kernel_size", Shape{2, 2}}};
  const auto with = [&](const char* name, const Shape& size) {
    Attributes attributes = window;
    attributes[name] = size;
    return attributes;
  };
  EXPECT_EQ(rule_of([&] { emit("convolution_backward_input", {f32({1, 2, 3, 3}), f32({2, 3, 1, 1})}, with("input_size", {1, 3, 4, 4})); }),
            "convolution_backward_input: dy does not fit to input_size and weight");
  EXPECT_EQ(
      rule_of([&] { emit("convolution_backward_weight", {f32({1, 2, 3, 3}), f32({1, 3, 4, 4})}, with("weight_size", {2, 3, 1, 1})); }),
      "convolution_backward_weight: dy does not fit to x and weight_size");
  EXPECT_EQ(rule_of([&] { max_pool2d(f32({1, 3, 4, 4}), 3, 1, 2); }),
            "max_pool2d_with_indices: padding must be at most half of the kernel");
  EXPECT_EQ(rule_of([&] { emit("max_pool2d_with_indices", {f32({1, 3, 4, 4})}, with("stride", {1})); }),
            "max_pool2d_with_indices: stride must be 2 numbers");
  EXPECT_EQ(
      rule_of([&] { emit("max_pool2d_with_indices_backward", {f32({1, 3, 3, 3}), i64({1, 3, 2, 2})}, with("input_size", {1, 3, 4, 4})); }),
      "max_pool2d_with_indices_backward: dy and indices do not fit to input_size");
  EXPECT_EQ(rule_of([&] { batch_norm(f32({2, 3}), f32({3}), f32({3})); }),
            "native_batch_norm: needs floating x[n, channels, height, width]");
  EXPECT_EQ(rule_of([&] { batch_norm(f32({1, 3, 1, 1}), f32({3}), f32({3})); }),
            "native_batch_norm: each channel needs more than one value");
  EXPECT_EQ(rule_of([&] { batch_norm(f32({2, 3, 1, 1}), f32({2}), f32({3})); }),
            "native_batch_norm: weight and bias must have x's dtype and the shape [channels]");
  const Tensor x = f32({2, 3, 1, 1});
  EXPECT_EQ(rule_of([&] { emit("native_batch_norm_backward", {x, x, f32({2}), f32({3}), f32({3})}); }),
            "native_batch_norm_backward: mean and rstd do not fit to x");
  EXPECT_EQ(rule_of([&] { emit("native_batch_norm_backward", {x, x, f32({3}), f32({3}), f32({2})}); }),
            "native_batch_norm_backward: weight must have x's dtype and the shape [channels]");
}

TEST_F(Failures, ConvolutionsOfAllKinds) {
  EXPECT_EQ(rule_of([&] { conv1d(f32({1, 3, 4, 4}), f32({2, 3, 1})); }), "conv1d: needs x[n, channels, length], not f32[1,3,4,4]");
  EXPECT_EQ(rule_of([&] { convolution(f32({3, 4}), f32({2, 3})); }),
            "convolution: needs floating x[n, channels, ...] with one to three dims of places");
  EXPECT_EQ(rule_of([&] { convolution(f32({1, 3, 4, 4}), f32({2, 3, 1, 1}), {}, {.stride = {1, 1, 1}}); }),
            "convolution: stride must be 2 numbers");
  EXPECT_EQ(rule_of([&] { conv2d(f32({1, 4, 4, 4}), f32({3, 2, 1, 1}), {}, {.groups = 2}); }),
            "convolution: the weight's first dim does not divide into the groups");
  EXPECT_EQ(rule_of([&] { conv2d(f32({1, 4, 4, 4}), f32({2, 4, 1, 1}), {}, {.dilation = {0}}); }),
            "convolution: dilation must be at least 1");
  EXPECT_EQ(rule_of([&] { conv2d(f32({1, 3, 4, 4}), f32({2, 3, 2, 2}), {}, {.dilation = {4}}); }),
            "convolution: the window is larger than the padded image");
  EXPECT_EQ(rule_of([&] { conv_transpose2d(f32({1, 3, 4, 4}), f32({3, 2, 1, 1}), {}, {.stride = {2}, .output_padding = {2}}); }),
            "convolution: output_padding must be below stride or dilation, and 0 of what is not transposed");
  EXPECT_EQ(rule_of([&] { conv_transpose1d(f32({1, 3, 1}), f32({3, 2, 1}), {}, {.padding = {1}}); }),
            "convolution: the padding leaves nothing of the image");
}

TEST_F(Failures, ImagesOfOtherSizes) {
  EXPECT_EQ(rule_of([&] { avg_pool2d(f32({3, 4, 4}), 2, 2); }), "avg_pool2d: needs floating x[n, channels, ...] with 2 dims of places");
  EXPECT_EQ(rule_of([&] { avg_pool3d(f32({1, 3, 4, 0, 4}), 2, 2); }), "avg_pool3d: an image has no empty dim");
  EXPECT_EQ(rule_of([&] { avg_pool2d(f32({1, 3, 4, 4}), 2, 0); }), "avg_pool2d: kernel and stride must be at least 1");
  EXPECT_EQ(rule_of([&] { avg_pool2d(f32({1, 3, 4, 4}), 3, 1, {.padding = 2}); }),
            "avg_pool2d: padding must be at most half of the kernel");
  EXPECT_EQ(rule_of([&] { avg_pool1d(f32({1, 3, 4}), 5, 1); }), "avg_pool2d: the window is larger than the padded image");
  const Attributes means = {
      {"kernel_size", Shape{2, 2}}, {"stride", Shape{2, 2}}, {"padding", Shape{0, 0}}, {"ceil_mode", false}, {"count_include_pad", true}};
  EXPECT_EQ(rule_of([&] { emit("avg_pool2d_backward", {f32({1, 3, 4, 4}), f32({1, 3, 4, 4})}, means); }),
            "avg_pool2d_backward: dy does not fit to x");
  EXPECT_EQ(message_of([&] { interpolate(f32({1, 3, 4, 4}), {8, 8}, "linear"); }),
            "interpolate: no mode \"linear\" for f32[1,3,4,4]\n  hint: modes: nearest, bilinear, bicubic");
  EXPECT_EQ(message_of([&] { interpolate(f32({3, 4}), {8}); }),
            "interpolate: no mode \"nearest\" for f32[3,4]\n  hint: x must be [n, channels, ...] with one to three dims of places");
  EXPECT_EQ(rule_of([&] { interpolate(f32({1, 3, 4}), {8}, "nearest", true); }), "interpolate: mode \"nearest\" has no corners to align");
  EXPECT_EQ(rule_of([&] { interpolate(f32({1, 3, 4}), {8, 8}); }), "upsample_nearest1d: output_size must be 1 number");
  EXPECT_EQ(rule_of([&] { interpolate(f32({1, 3, 4}), {0}); }), "upsample_nearest1d: output_size must be at least 1");
  const Attributes sizes = {{"output_size", Shape{8}}, {"input_size", Shape{1, 3, 4}}};
  EXPECT_EQ(rule_of([&] { emit("upsample_nearest1d_backward", {f32({1, 3, 4})}, sizes); }),
            "upsample_nearest1d_backward: dy does not fit to input_size");
}

TEST_F(Failures, Indexing) {
  EXPECT_EQ(rule_of([&] { gather(f32({2, 3}), 0, f32({2, 3})); }), "gather: indices must be i64");
  EXPECT_EQ(rule_of([&] { gather(f32({2, 3}), 0, i64({2})); }), "gather: x and indices must have equally many dims");
  EXPECT_EQ(rule_of([&] { gather(f32({2, 3}), 0, i64({2, 4})); }), "gather: indices may be larger than x along dim only");
  EXPECT_EQ(rule_of([&] { gather(f32({2, 3}), 2, i64({2, 3})); }), "gather: dim is outside the 2 dims of the operand");
  for (const auto& [name, function] :
       std::vector<std::pair<std::string, decltype(&scatter)>>{{"scatter.src", scatter}, {"scatter_add", scatter_add}})
    EXPECT_EQ(rule_of([&] { function(f32({2, 3}), 1, i64({2, 2}), f32({2, 3})); }),
              name + ": the source must have x's dtype and the indices' shape");
  EXPECT_EQ(rule_of([&] { index_select(f32({2, 3}), 0, i64({2, 3})); }), "index_select: needs indices i64[n]");
  EXPECT_EQ(rule_of([&] { index_add(f32({2, 3}), 0, i64({4}), f32({2, 3})); }),
            "index_add: the source must be as x, with as many places along dim as there are indices");
  EXPECT_EQ(rule_of([&] { sort(f32({2, 3}), 2); }), "sort.stable: dim is outside the 2 dims of the operand");
  EXPECT_EQ(rule_of([&] { topk(f32({2, 3}), 4, 1); }), "topk: k must be in [0, 3]");
  EXPECT_EQ(rule_of([&] { argmax(f32({2, 0}), 1); }), "argmax: nothing has no maximum");
}

TEST_F(Failures, FunctionsOfOtherOps) {
  EXPECT_EQ(rule_of([&] { tril(f32({2})); }), "tril: needs x[..., rows, columns], not f32[2]");
  EXPECT_EQ(rule_of([&] { stack({}); }), "stack: takes at least one operand");
  EXPECT_EQ(rule_of([&] { stack({f32({2}), f32({3})}); }), "stack: operands must have one type, not f32[2] and f32[3]");
  EXPECT_EQ(rule_of([&] { one_hot(f32({2}), 3); }), "one_hot: indices must be i64, not f32[2]");
  EXPECT_EQ(message_of([&] { one_hot(i64({2}), -1); }), "one_hot: -1 classes\n  hint: their number is a part of the result's shape");
  EXPECT_EQ(message_of([&] { pad(f32({2, 3}), {1, 1, 1}); }),
            "pad: 3 numbers for f32[2,3]\n  hint: two of the last dim, before and behind it, then two of each dim before it");
  EXPECT_EQ(message_of([&] { pad(f32({2, 3}), {1, 1}, "mirror"); }),
            "pad: no mode \"mirror\"\n  hint: modes: constant, reflect, replicate, circular");
  EXPECT_EQ(rule_of([&] { pad(f32({2, 3}), {3, 0}, "reflect"); }), "pad: 3 places more of a dim of 3 in mode reflect");
  EXPECT_EQ(rule_of([&] { pad(f32({2, 3}), {-1, 0}, "circular"); }), "pad: mode circular takes nothing away");
  EXPECT_EQ(rule_of([&] { group_norm(f32({2, 3}), 2); }),
            "group_norm: needs x[n, channels, ...] whose channels divide into 2 groups, not f32[2,3]");
  EXPECT_EQ(rule_of([&] { group_norm(f32({2, 4}), 2, f32({2})); }),
            "group_norm: weight and bias must have x's dtype and the shape [channels], not f32[2]");
  EXPECT_EQ(rule_of([&] { pow(f32({2}), i64({2})); }), "pow.Tensor_Tensor: operands are f32 and i64");
  EXPECT_EQ(rule_of([&] { log1p(i64({2})); }), "log1p: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { binary_cross_entropy(f32({2}), f32({3})); }), "binary_cross_entropy: operands must have one type");
  EXPECT_EQ(rule_of([&] { emit("binary_cross_entropy", {f32({2}), f32({2})}, {{"reduction", 1}}); }),
            "binary_cross_entropy: reduction must be 0: the loss of each element");
  EXPECT_EQ(rule_of([&] { scaled_dot_product_attention(f32({1, 4, 2, 2}), f32({1, 3, 2, 2}), f32({1, 3, 2, 2}), {.enable_gqa = true}); }),
            "scaled_dot_product_attention: 4 heads of q do not divide among 3 of k and v");
}

TEST_F(Failures, Einsum) {
  const auto message = [&](const std::string& equation, const std::vector<Tensor>& operands) {
    return message_of([&] { einsum(equation, operands); });
  };
  EXPECT_EQ(message("...i->i", {f32({2})}), "einsum \"...i->i\": no letter: '.'\n  hint: every dim has a letter; \"...\" is not taken");
  EXPECT_EQ(message("ii->i", {f32({2, 2})}), "einsum \"ii->i\": letter i stands twice in one operand: diagonals are not taken");
  EXPECT_EQ(message("ij->k", {f32({2, 2})}), "einsum \"ij->k\": letter k of the result stands in no operand");
  EXPECT_EQ(message("ij->ii", {f32({2, 2})}), "einsum \"ij->ii\": letter i stands twice in the result");
  EXPECT_EQ(message("i,j->ij", {f32({2})}), "einsum \"i,j->ij\": it has 2 terms for 1 operand");
  EXPECT_EQ(message("ij->i", {f32({2})}), "einsum \"ij->i\": \"ij\" does not name the dims of f32[2]");
  EXPECT_EQ(message("ij,jk->ik", {f32({2, 3}), f32({4, 5})}), "einsum \"ij,jk->ik\": letter j has sizes 3 and 4");
}

TEST_F(Failures, Normalisation) {
  EXPECT_EQ(rule_of([&] { layer_norm(f32({2, 3}), f32({2}), f32({2})); }),
            "native_layer_norm: weight and bias must have x's dtype and the shape [last dim of x]");
  EXPECT_EQ(rule_of([&] { layer_norm(f32({2, 3}), f32({3}), {}); }), "native_layer_norm: operand 2 is no tensor");
  EXPECT_EQ(rule_of([&] { layer_norm(f32({}), {}, {}); }), "native_layer_norm: x must have a last dim");
  EXPECT_EQ(rule_of([&] { rms_norm(bf16({2, 3}), f32({3})); }),
            "_fused_rms_norm: weight and bias must have x's dtype and the shape [last dim of x]");
  EXPECT_EQ(rule_of([&] { softmax(f32({2}), 1); }), "softmax: dim is outside the 1 dims of the operand");
  EXPECT_EQ(rule_of([&] { log_softmax(i64({2}), 0); }), "log_softmax: operand 0 must be floating, not i64");
  EXPECT_EQ(rule_of([&] { emit("native_layer_norm_backward", {f32({2, 3}), f32({2, 3}), f32({2}), f32({2})}); }),
            "native_layer_norm_backward: mean and rstd do not fit to x");
  EXPECT_EQ(rule_of([&] { emit("_fused_rms_norm_backward", {f32({2, 3}), f32({2, 3}), f32({2}), f32({3})}); }),
            "_fused_rms_norm_backward: rstd does not fit to x");
}

TEST_F(Failures, Attention) {
  const auto attend = [&](Shape q, Shape k, Shape v) {
    return rule_of([&] { scaled_dot_product_attention(f32(q), f32(k), f32(v), true); });
  };
  EXPECT_EQ(attend({2, 3, 4}, {2, 3, 4}, {2, 3, 4}), "scaled_dot_product_attention: needs q, k, v [batch, heads, length, head]");
  EXPECT_EQ(attend({2, 2, 4, 8}, {2, 1, 4, 8}, {2, 2, 4, 8}),
            "scaled_dot_product_attention: batch, heads and head must agree in q, k and v");
  EXPECT_EQ(attend({2, 2, 4, 8}, {2, 2, 5, 8}, {2, 2, 4, 8}), "scaled_dot_product_attention: k and v must have one length");
  const auto biased = [&](const Shape& bias) {
    return rule_of([&] {
      emit("scaled_dot_product_attention", {f32({2, 2, 4, 8}), f32({2, 2, 5, 8}), f32({2, 2, 5, 8}), f32(bias)},
           {{"is_causal", false}, {"scale", 1.0}});
    });
  };
  for (const Shape& bias : {Shape{2, 2, 4, 4}, Shape{2, 5}})
    EXPECT_EQ(biased(bias), "scaled_dot_product_attention: the bias must be of q's dtype and broadcast to [batch, heads, queries, keys]");
  EXPECT_EQ(rule_of([&] { scaled_dot_product_attention(f32({1, 1, 1, 1}), bf16({1, 1, 1, 1}), f32({1, 1, 1, 1}), true); }),
            "scaled_dot_product_attention: q, k and v must have one dtype");
}

TEST_F(Failures, AttentionInRanges) {
  const auto attend = [&](Shape ranges, std::int64_t reach, Shape bias = {}) {
    return rule_of([&] {
      attention_in_ranges(f32({2, 3, 4, 8}), f32({2, 3, 5, 8}), f32({2, 3, 5, 8}), i64(ranges),
                          {reach, bias.empty() ? Tensor() : f32(bias)});
    });
  };
  EXPECT_EQ(attend({2, 5, 2}, 5), "attention_in_ranges: needs ranges i64[batch, queries, 2]");
  EXPECT_EQ(attend({2, 4, 2}, 0), "attention_in_ranges: reach must be at least 1");
  EXPECT_EQ(attend({2, 4, 2}, 5, {3, 10}), "attention_in_ranges: needs a bias[heads, 2*reach - 1] of q's dtype");
  EXPECT_EQ(rule_of([&] { attention_in_ranges(f32({2, 3, 4}), f32({2, 3, 4}), f32({2, 3, 4}), i64({2, 4, 2}), {4}); }),
            "attention_in_ranges: needs q, k, v [batch, heads, length, head]");
}

TEST_F(Failures, AttentionJoin) {
  const auto join = [&](Shape out, Shape logsumexp, Shape other) {
    return rule_of([&] { emit("attention_join", {f32(out), f32(logsumexp), f32(other), f32(logsumexp)}, {}); });
  };
  EXPECT_EQ(join({2, 3, 4}, {2, 3}, {2, 3, 4}), "attention_join: needs floating out[batch, heads, length, head]");
  EXPECT_EQ(join({2, 3, 4, 5}, {2, 3, 4}, {2, 3, 5, 5}), "attention_join: both must be of one type");
  EXPECT_EQ(join({2, 3, 4, 5}, {2, 3}, {2, 3, 4, 5}), "attention_join: a logsumexp does not fit to its out");
}

TEST_F(Failures, EmbeddingAndLoss) {
  EXPECT_EQ(rule_of([&] { embedding(f32({5, 2}), f32({3})); }), "embedding: indices must be i64");
  EXPECT_EQ(rule_of([&] { embedding(f32({5}), i64({3})); }), "embedding: needs weight[rows, width]");
  EXPECT_EQ(rule_of([&] { emit("embedding_patched", {f32({5, 2}), i64({3}), f32({3, 2})}); }),
            "embedding_patched: needs weight, indices, rows looked up ahead, and indices of what has changed");
  EXPECT_EQ(rule_of([&] { emit("embedding_patched", {f32({5, 2}), i64({3}), f32({2, 2}), i64({1})}); }),
            "embedding_patched: the rows looked up ahead must be those of the indices");
  EXPECT_EQ(rule_of([&] { emit("embedding_patched", {f32({5, 2}), i64({3}), f32({3, 2}), f32({1})}); }),
            "embedding_patched: indices must be i64");
  EXPECT_EQ(rule_of([&] { emit("sum_equal_rows", {f32({5}), i64({5})}, {{"num_weights", 4}}); }), "sum_equal_rows: needs rows[n, width]");
  EXPECT_EQ(rule_of([&] { emit("sum_equal_rows", {f32({5, 2}), i64({4})}, {{"num_weights", 4}}); }),
            "sum_equal_rows: needs an i64 index for each row");
  EXPECT_EQ(rule_of([&] { emit("sum_equal_rows", {f32({5, 2}), i64({5})}, {{"num_weights", -4}}); }),
            "sum_equal_rows: num_weights is negative");
  EXPECT_EQ(rule_of([&] { emit("sgd_rows", {f32({5}), f32({3, 2}), i64({3}), f32({})}); }), "sgd_rows: needs weight[rows, width]");
  EXPECT_EQ(rule_of([&] { emit("sgd_rows", {f32({5, 2}), f32({3, 2}), i64({3, 1}), f32({})}); }),
            "sgd_rows: indices must be a vector of i64");
  EXPECT_EQ(rule_of([&] { emit("sgd_rows", {f32({5, 2}), f32({3, 1}), i64({3}), f32({})}); }),
            "sgd_rows: needs a row of the gradient for each index");
  EXPECT_EQ(rule_of([&] { emit("sgd_rows", {f32({5, 2}), f32({3, 2}), i64({3}), f32({1})}); }),
            "sgd_rows: the learning rate must be a floating scalar");
  EXPECT_EQ(rule_of([&] { emit("take_rows", {f32({5, 2}), i64({3})}); }), "take_rows: needs indices[n, 1]");
  EXPECT_EQ(rule_of([&] { emit("put_rows", {f32({5}), f32({3, 1, 2}), i64({3, 1})}); }), "put_rows: needs weight[rows, width]");
  EXPECT_EQ(rule_of([&] { emit("put_rows", {f32({5, 2}), f32({3, 2}), i64({3})}); }), "put_rows: needs indices[n, 1]");
  EXPECT_EQ(rule_of([&] { emit("put_rows", {f32({5, 2}), f32({3, 2, 2}), i64({3, 2})}); }), "put_rows: needs indices[n, 1]");
  EXPECT_EQ(rule_of([&] { emit("put_rows", {f32({5, 2}), f32({4, 1, 2}), i64({3, 1})}); }), "put_rows: needs a row for each index");
  EXPECT_EQ(rule_of([&] { emit("embedding_dense_backward", {f32({5, 2}), i64({3})}, {{"num_weights", 4}}); }),
            "embedding_dense_backward: dy must have the shape of the indices and a last dim");
  EXPECT_EQ(rule_of([&] { embedding_bag(f32({5, 2}), i64({})); }), "embedding_bag: indices must have a last dim");
  EXPECT_EQ(rule_of([&] { emit("embedding_bag_dense_backward", {f32({5, 2}), i64({4, 3})}, {{"num_weights", 4}}); }),
            "embedding_bag_dense_backward: dy and indices must agree but for their last dim");
  EXPECT_EQ(rule_of([&] { emit("embedding", {f32({5, 2}), i64({3})}, {{"begin", std::int64_t{0}}}); }),
            "embedding has no attribute \"whole\"");
  EXPECT_EQ(rule_of([&] { emit("embedding", {f32({5, 2}), i64({3})}, {{"begin", std::int64_t{3}}, {"whole", std::int64_t{7}}}); }),
            "embedding: 5 rows from row 3 on do not lie in a table of 7");
  const Attributes negative = {{"num_weights", std::int64_t{-1}}};
  EXPECT_EQ(rule_of([&] { emit("embedding_dense_backward", {f32({3, 2}), i64({3})}, negative); }),
            "embedding_dense_backward: num_weights is negative");
  EXPECT_EQ(rule_of([&] { emit("embedding_bag_dense_backward", {f32({3, 2}), i64({3, 4})}, negative); }),
            "embedding_bag_dense_backward: num_weights is negative");
  EXPECT_EQ(rule_of([&] { mse_loss(f32({2}), f32({3})); }), "sub: shapes do not broadcast: 2 and 3 at dim 0");
  EXPECT_EQ(rule_of([&] { cross_entropy(f32({2, 3, 4}), i64({2})); }), "cross_entropy: needs floating logits[n, classes]");
  EXPECT_EQ(rule_of([&] { cross_entropy(f32({2, 3}), i64({3})); }), "cross_entropy: needs targets i64[n]");
  EXPECT_EQ(cross_entropy(bf16({2, 3}), i64({2})).dtype(), DType::f32);
}

TEST_F(Failures, LossInParts) {
  const auto parts = [&](std::vector<std::int64_t> ends, std::int64_t begin) {
    return rule_of([&] { emit("cross_entropy_parts", {f32({2, 7}), i64({2})}, {{"ends", ends}, {"begin", begin}}); });
  };
  EXPECT_EQ(parts({3, 7}, -1), "cross_entropy_parts: begin is negative");
  for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{0, 7}, {3, 3, 7}, {7, 3}})
    EXPECT_EQ(parts(ends, 0), "cross_entropy_parts: ends must grow, from 1 on");
  for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{}, {3, 6}, {3, 8}})
    EXPECT_EQ(parts(ends, 0), "cross_entropy_parts: the last end must be the number of classes");
  EXPECT_EQ(rule_of([&] { emit("cross_entropy_parts", {f32({2, 7}), i64({3})}, {{"ends", std::vector<std::int64_t>{7}}}); }),
            "cross_entropy_parts: needs targets i64[n]");
  EXPECT_EQ(rule_of([&] { emit("cross_entropy_parts", {f32({2, 7}), i64({2})}); }), "cross_entropy_parts has no attribute \"ends\"");
  const auto backward = [&](Tensor dparts, Tensor of) {
    const Attributes all = {{"ends", std::vector<std::int64_t>{3, 7}}};
    return rule_of([&] { emit("cross_entropy_parts_backward", {dparts, f32({2, 7}), i64({2}), of}, all); });
  };
  EXPECT_EQ(backward(f32({1, 2, 2}), f32({2, 2, 2})), "cross_entropy_parts_backward: the parts do not fit to the logits");
  EXPECT_EQ(backward(f32({2, 2, 2}), f32({2, 2, 3})), "cross_entropy_parts_backward: the parts do not fit to the logits");
  const auto join = [&](Tensor of, Tensor targets, std::int64_t classes) {
    return rule_of([&] { emit("cross_entropy_join", {of, targets}, {{"ignore_index", std::int64_t{-100}}, {"classes", classes}}); });
  };
  for (const Shape& shape : {Shape{2, 5}, Shape{2, 3, 5}, Shape{0, 2, 5}})
    EXPECT_EQ(join(f32(shape), i64({5}), 7), "cross_entropy_join: needs parts[parts, 2, n]");
  EXPECT_EQ(join(f32({3, 2, 5}), i64({6}), 7), "cross_entropy_join: needs targets i64[n]");
  EXPECT_EQ(join(bf16({3, 2, 5}), i64({5}), 7), "cross_entropy_join: parts must be f32 or f64");
  EXPECT_EQ(join(f32({3, 2, 5}), i64({5}), 0), "cross_entropy_join: classes must be positive");
  const Attributes negative = {{"ignore_index", std::int64_t{-100}}, {"begin", std::int64_t{-1}}};
  EXPECT_EQ(rule_of([&] { emit("cross_entropy_backward", {f32({}), f32({2, 7}), i64({2}), f32({2})}, negative); }),
            "cross_entropy_backward: begin is negative");
}

TEST_F(Failures, Random) {
  EXPECT_EQ(rule_of([&] { dropout(f32({2}), 1, i64({}), i64({2})); }), "dropout: p must be in [0, 1)");
  EXPECT_EQ(rule_of([&] { dropout(f32({2}), 0.5, i64({1}), i64({2})); }), "dropout: the key must be an i64 scalar");
  EXPECT_EQ(rule_of([&] { dropout(f32({2}), 0.5, i64({}), i64({3})); }), "dropout: needs rows i64[first size of x]");
  EXPECT_EQ(rule_of([&] { dropout(f32({2}), 0.5, i64({}), i64({2}), i64({3})); }), "dropout: needs positions i64[first size of x]");
  const auto part = [&](std::vector<std::int64_t> inner, std::vector<std::int64_t> begin) {
    return rule_of([&] {
      emit("dropout", {f32({2}), i64({}), i64({2})},
           {{"p", 0.5}, {"inner", inner}, {"whole", std::vector<std::int64_t>{5}}, {"begin", begin}});
    });
  };
  EXPECT_EQ(part({2}, {}), "dropout: inner, whole and begin must be equally long");
  for (const std::int64_t begin : {-1, 4})
    EXPECT_EQ(part({2}, {begin}), "dropout: inner elements from begin on must lie in a block of whole elements");
  EXPECT_EQ(part({0}, {0}), "dropout: inner elements from begin on must lie in a block of whole elements");
  EXPECT_EQ(rule_of([&] { random_key(f32({}), i64({}), 1); }), "random_key: seed and step must be i64 scalars");
}

TEST_F(Failures, Optimisers) {
  EXPECT_EQ(rule_of([&] { adamw({f32({2}), f32({2}), f32({2})}, bf16({2}), f32({}), i64({}), {}); }),
            "adamw: parameter, gradient and moments must have one type");
  EXPECT_EQ(rule_of([&] { adamw({f32({2}), f32({2}), f32({2})}, f32({2}), f32({1}), i64({}), {}); }),
            "adamw: the learning rate must be a floating scalar");
  EXPECT_EQ(rule_of([&] { adamw({f32({2}), f32({2}), f32({2})}, f32({2}), f32({}), f32({}), {}); }),
            "adamw: the step must be an i64 scalar");
  const auto update_of = [&](Tensor p) {
    return UpdateOp{"adamw", {p, p, p, p, f32({}), i64({})}, {{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"weight_decay", 0.0}}};
  };
  const UpdateOp op = update_of(f32({2}));
  EXPECT_EQ(rule_of([&] { update_ahead(update_of(bf16({2})), bf16({})); }), "update_ahead: what is kept must be f32 or f64");
  EXPECT_EQ(rule_of([&] { update_ahead(op, f32({2})); }), "update_ahead: a factor must be a scalar of the parameter's type");
  EXPECT_EQ(rule_of([&] { emit("update_ahead", {f32({2}), f32({})}, {{"update", std::string("sgd")}}); }),
            "update_ahead: it takes the operands of its update, and a factor");
  EXPECT_EQ(rule_of([&] { emit("update_ahead", {f32({2}), f32({})}, {{"update", std::string("mul")}}); }),
            "update_ahead: \"mul\" is no optimiser's op");
  std::vector<Tensor> ahead = update_ahead(op, f32({}));
  EXPECT_EQ(rule_of([&] { update_validated(op, ahead, f32({}), bf16({})); }),
            "update_validated: a factor must be a scalar of the parameter's type");
  ahead[0] = f32({3});
  EXPECT_EQ(rule_of([&] { update_validated(op, ahead, f32({}), f32({})); }),
            "update_validated: the update must have the kept parameter's type");
  EXPECT_EQ(rule_of([&] { emit("update_validated", {f32({2}), f32({})}, {{"update", std::string("sgd")}}); }),
            "update_validated: it takes what its update made, the operands of that, and two factors");
  EXPECT_EQ(rule_of([&] { sgd({f32({2}), f32({3})}, f32({2}), f32({}), {}); }), "sgd: parameter, gradient and moments must have one type");
}

TEST_F(Failures, Collectives) {
  const MeshAxis data{"data", 4};
  EXPECT_EQ(message_of([&] { all_reduce(boolean({2}), data); }),
            "all_reduce: devices cannot sum bool\n  operands: bool[2]\n  attributes: axis=\"data\", size=4\n"
            "  hint: f32, f64, bf16, i32 and i64 can be: cast with to()");
  EXPECT_EQ(rule_of([&] { reduce_scatter(boolean({4}), 0, data); }), "reduce_scatter: devices cannot sum bool");
  EXPECT_EQ(rule_of([&] { reduce_scatter(f32({4, 6}), 1, data); }), "reduce_scatter: the dim's size of 6 does not divide into 4 pieces");
  EXPECT_EQ(rule_of([&] { all_to_all(f32({6, 4}), 0, data); }), "all_to_all: the dim's size of 6 does not divide into 4 pieces");
  EXPECT_EQ(rule_of([&] { all_gather(f32({4}), 1, data); }), "all_gather: dim is outside the 1 dims of the operand");
  EXPECT_EQ(rule_of([&] { all_gather(f32({}), 0, data); }), "all_gather: dim is outside the 0 dims of the operand");
  EXPECT_EQ(rule_of([&] { all_gather(f32({4}), 0, {"data", std::int64_t{1} << 62}); }), "all_gather: the result is too large");
  EXPECT_EQ(rule_of([&] { broadcast(f32({4}), 4, data); }), "broadcast: root is no member of the axis");
  EXPECT_EQ(rule_of([&] { keep_member(f32({4}), -1, data); }), "keep_member: root is no member of the axis");
  const auto shift = [&](std::int64_t by, std::int64_t message) {
    return rule_of([&] {
      emit("shift_members", {f32({4})},
           {{"axis", "data"},
            {"size", std::int64_t{4}},
            {"by", by},
            {"dim", std::int64_t{0}},
            {"length", std::int64_t{2}},
            {"message", message}});
    });
  };
  EXPECT_EQ(shift(4, 0), "shift_members: by is no distance between two members");
  EXPECT_EQ(shift(1, -1), "shift_members: message is negative");
  EXPECT_EQ(rule_of([&] { all_reduce(f32({4}), {"data", 0}); }), "all_reduce: an axis has at least one member");
  EXPECT_EQ(rule_of([&] { all_reduce(f32({4}), {"", 2}); }), "all_reduce: the axis has no name");
  EXPECT_EQ(rule_of([&] { emit("all_reduce", {f32({2}), f32({2})}, {{"axis", "data"}, {"size", std::int64_t{2}}}); }),
            "all_reduce: takes 1 operands, not 2");
}

}  // namespace
}  // namespace penstock
