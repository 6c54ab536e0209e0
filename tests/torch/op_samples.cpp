// SPDX-License-Identifier: Apache-2.0
#include "torch/op_samples.h"

#include <algorithm>

#include "base/text.h"
#include "ops/definition.h"

namespace penstock::test {
namespace {

using Integers = std::vector<std::int64_t>;
using Operands = std::vector<SampleOperand>;
using Samples = std::vector<OpSample>;

SampleOperand f(Shape shape, double low = -1, double high = 1) {
  return {{DType::f64, std::move(shape)}, low, high};
}
SampleOperand positive(Shape shape) {
  return f(std::move(shape), 0.5, 2);
}
SampleOperand integers(Shape shape, double below) {
  return {{DType::i64, std::move(shape)}, 0, below};
}
SampleOperand bools(Shape shape) {
  return {{DType::boolean, std::move(shape)}, 0, 2};
}

void add(Samples& samples, std::string name, Operands operands, Attributes attributes = {}) {
  OpSample sample;
  sample.op.name = std::move(name);
  sample.op.attributes = std::move(attributes);
  sample.operands = std::move(operands);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < sample.operands.size(); ++i) sample.op.operands.emplace_back(next++);
  sample.results = find_op(sample.op.name)->infer(sample.op, sample.operand_types());
  for (std::size_t i = 0; i < sample.results.size(); ++i) sample.op.results.emplace_back(next++);
  samples.push_back(std::move(sample));
}

void elementwise(Samples& s) {
  for (const char* name : {"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"}) {
    add(s, name, {f({6, 5}), positive({6, 5})});
    add(s, name, {f({5, 6, 1}), positive({6, 5})});
    add(s, name, {f({5}), positive({6, 1})});
    add(s, name, {f({7, 6})}, {{"other", 0.5}});
  }
  for (const char* name : {"maximum", "minimum"}) add(s, name, {f({6, 5}), f({5})});
  for (const char* name : {"logical_and", "logical_or"}) add(s, name, {bools({6, 5}), bools({6, 1})});
  add(s, "logical_not", {bools({6, 5})});
  add(s, "where", {bools({6, 5}), f({5}), f({4, 1, 1})});
  add(s, "pow", {positive({6, 5})}, {{"exponent", 3.0}});
  add(s, "pow.Tensor_Tensor", {positive({6, 5}), f({5})});
  for (const char* name : {"neg", "abs", "sign", "exp", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "isfinite",
                           "relu", "silu", "detach", "stage_boundary"})
    add(s, name, {positive({6, 5})});
  add(s, "constrain", {f({6, 5})}, {{"dims", std::string("a,b")}});
  for (const char* name : {"tanh_backward", "sigmoid_backward", "silu_backward"}) add(s, name, {f({6, 5}), f({6, 5})});
  add(s, "threshold_backward", {f({6, 5}), f({6, 5})}, {{"threshold", 0.0}});
  add(s, "gelu", {f({6, 5})}, {{"approximate", std::string("tanh")}});
  add(s, "gelu_backward", {f({6, 5}), f({6, 5})});
  add(s, "to", {f({6, 5}, -9, 9)}, {{"dtype", DType::i64}});
}

void reductions(Samples& s) {
  for (const char* name : {"sum", "mean", "amax"})
    for (const Integers& dims : {Integers{}, {1}, {0, -1}})
      for (const bool keepdim : {false, true}) add(s, name, {f({6, 5, 7})}, {{"dim", dims}, {"keepdim", keepdim}});
  add(s, "sum", {bools({6, 5})}, {{"dim", Integers{0}}});
  for (const std::int64_t dim : {0, 1, -1}) add(s, "cumsum", {f({6, 5, 7})}, {{"dim", dim}});
  add(s, "cumsum", {bools({6, 5})}, {{"dim", std::int64_t{0}}});
  add(s, "add_n", {f({6, 5}), f({6, 5}), f({6, 5})});
}

void views(Samples& s) {
  for (const Shape& shape : {Shape{5, 3, 2, 6}, {5, 36}, {180}, {5, 6, -1}, {30, 6}, {1, 5, 18, 2}})
    add(s, "reshape", {f({5, 6, 6})}, {{"shape", shape}});
  add(s, "reshape", {f({5, 2, 18})}, {{"shape", Shape{10, 3, 6, 1}}});
  add(s, "transpose", {f({5, 6, 4})}, {{"dim0", std::int64_t{0}}, {"dim1", std::int64_t{-1}}});
  add(s, "permute", {f({5, 6, 4})}, {{"dims", Integers{2, 0, -2}}});
  add(s, "expand", {f({6, 1, 5})}, {{"size", Integers{7, -1, 3, 5}}});
  add(s, "expand", {f({})}, {{"size", Integers{6, 5}}});
  for (const std::int64_t dim : {0, 1, 2}) add(s, "unsqueeze", {f({6, 5})}, {{"dim", dim}});
  add(s, "squeeze", {f({6, 1, 5})}, {{"dim", std::int64_t{1}}});
  for (const char* name : {"slice", "slice_backward"})
    for (const Integers& range : {Integers{0, 12, 1}, {4, 8, 1}, {-12, 99, 1}, {2, 11, 3}, {6, 12, 1}, {0, 5, 1}, {3, 9, 1}}) {
      Attributes attributes = {{"dim", std::int64_t{1}}, {"start", range[0]}, {"end", range[1]}, {"step", range[2]}};
      if (name == std::string("slice_backward")) attributes["input_sizes"] = Shape{5, 12, 6};
      const std::int64_t start = range[0] < 0 ? 0 : range[0], end = std::min<std::int64_t>(range[1], 12);
      const std::int64_t size = attributes.contains("input_sizes") ? (end - start + range[2] - 1) / range[2] : 12;
      add(s, name, {f({5, size, 6})}, attributes);
    }
  for (const std::int64_t index : {0, 3, -1}) {
    add(s, "select", {f({6, 4, 5})}, {{"dim", std::int64_t{1}}, {"index", index}});
    add(s, "select_backward", {f({6, 5})}, {{"dim", std::int64_t{1}}, {"index", index}, {"input_sizes", Shape{6, 4, 5}}});
  }
  for (const std::int64_t size : {2, 4, 5, 6, 18}) add(s, "split", {f({5, 18, 6})}, {{"dim", std::int64_t{1}}, {"split_size", size}});
  add(s, "cat", {f({5, 6}), f({5, 6}), f({5, 6})}, {{"dim", std::int64_t{1}}});
  add(s, "cat", {f({5, 6}), f({5, 12})}, {{"dim", std::int64_t{-1}}});
  add(s, "cat", {f({5, 3}), f({5, 4})}, {{"dim", std::int64_t{1}}});
  add(s, "full", {}, {{"size", Shape{6, 5}}, {"fill_value", 2.0}, {"dtype", DType::f64}});
  add(s, "arange", {}, {{"end", std::int64_t{6}}, {"dtype", DType::i64}});
}

void indexing(Samples& s) {
  for (const std::int64_t dim : {0, -1}) {
    const Attributes along = {{"dim", dim}};
    const Shape index = dim == 0 ? Shape{9, 6, 4} : Shape{6, 6, 3};
    add(s, "gather", {f({6, 6, 4}), integers(index, 4)}, along);
    add(s, "gather", {f({6, 6, 4}), integers({6, 3, 4}, 4)}, along);
    for (const char* name : {"scatter_add", "scatter.src"}) add(s, name, {f({6, 6, 4}), integers(index, 4), f(index)}, along);
    add(s, "index_select", {f({6, 6, 4}), integers({3}, 4)}, along);
    add(s, "index_add", {f({6, 6, 4}), integers({3}, 4), f(dim == 0 ? Shape{3, 6, 4} : Shape{6, 6, 3})}, along);
    add(s, "sort.stable", {f({6, 6, 4})}, {{"dim", dim}, {"stable", true}, {"descending", dim == 0}});
    add(s, "topk", {f({6, 6, 4})}, {{"dim", dim}, {"k", std::int64_t{3}}, {"largest", dim == 0}, {"sorted", true}});
    for (const bool keepdim : {false, true}) add(s, "argmax", {f({6, 6, 4})}, {{"dim", dim}, {"keepdim", keepdim}});
  }
}

void products(Samples& s) {
  for (const Shape& x : {Shape{6}, {5, 6}, {2, 5, 6}}) {
    add(s, "linear", {f(x), f({7, 6})});
    add(s, "linear", {f(x), f({7, 6}), f({7})});
  }
  add(s, "mm", {f({5, 6}), f({6, 7})});
  add(s, "bmm", {f({6, 5, 4}), f({6, 4, 7})});
  for (const Shape& bias : {Shape{}, {7}, {5, 1}, {5, 7}}) add(s, "addmm", {f(bias), f({5, 6}), f({6, 7})});
  add(s, "matmul", {f({4, 5, 6}), f({6, 7})});
  add(s, "matmul", {f({4, 1, 5, 6}), f({3, 6, 7})});
}

void images(Samples& s) {
  const Attributes window = {{"stride", Integers{2, 1}}, {"padding", Integers{1, 0}}};
  const auto with = [](Attributes attributes, const char* name, Integers value) {
    attributes[name] = std::move(value);
    return attributes;
  };
  add(s, "convolution", {f({4, 6, 5, 4}), f({7, 6, 3, 2})}, window);
  add(s, "convolution", {f({4, 6, 5, 4}), f({7, 6, 3, 2}), f({7})}, window);
  add(s, "convolution_backward_input", {f({4, 7, 3, 3}), f({7, 6, 3, 2})}, with(window, "input_size", {4, 6, 5, 4}));
  add(s, "convolution_backward_weight", {f({4, 7, 3, 3}), f({4, 6, 5, 4})}, with(window, "weight_size", {7, 6, 3, 2}));
  Attributes grouped = {{"stride", Integers{2}}, {"padding", Integers{1}}, {"dilation", Integers{2}}, {"groups", std::int64_t{3}}};
  add(s, "convolution", {f({4, 6, 9}), f({9, 2, 3}), f({9})}, grouped);
  add(s, "convolution_backward_input", {f({4, 9, 4}), f({9, 2, 3})}, with(grouped, "input_size", {4, 6, 9}));
  add(s, "convolution_backward_weight", {f({4, 9, 4}), f({4, 6, 9})}, with(grouped, "weight_size", {9, 2, 3}));
  Attributes back = {{"stride", Integers{2, 1, 2}}, {"padding", Integers{1, 0, 0}}, {"output_padding", Integers{1, 0, 0}}};
  back["transposed"] = true;
  add(s, "convolution", {f({4, 6, 3, 2, 2}), f({6, 4, 3, 2, 1}), f({4})}, back);
  add(s, "convolution_backward_input", {f({4, 4, 6, 3, 3}), f({6, 4, 3, 2, 1})}, with(back, "input_size", {4, 6, 3, 2, 2}));
  add(s, "convolution_backward_weight", {f({4, 4, 6, 3, 3}), f({4, 6, 3, 2, 2})}, with(back, "weight_size", {6, 4, 3, 2, 1}));
  const Attributes pool = {{"stride", Integers{2, 1}}, {"padding", Integers{1, 0}}, {"kernel_size", Integers{3, 2}}};
  add(s, "max_pool2d_with_indices", {f({4, 6, 5, 4})}, pool);
  add(s, "max_pool2d_with_indices_backward", {f({4, 6, 3, 3}), integers({4, 6, 3, 3}, 20)}, with(pool, "input_size", {4, 6, 5, 4}));
  add(s, "native_batch_norm", {f({4, 6, 2, 3}), f({6}), f({6})}, {{"eps", 0.1}});
  add(s, "native_batch_norm_backward", {f({4, 6, 2, 3}), f({4, 6, 2, 3}), f({6}), positive({6}), f({6})});
}

void resampling(Samples& s) {
  for (const bool ceil : {false, true}) {
    const Attributes means = {{"kernel_size", Integers{3, 2}},
                              {"stride", Integers{2, 2}},
                              {"padding", Integers{1, 0}},
                              {"ceil_mode", ceil},
                              {"count_include_pad", !ceil}};
    const Shape y = {4, 6, 3, ceil ? 3 : 2};
    add(s, "avg_pool2d", {f({4, 6, 5, 5})}, means);
    add(s, "avg_pool2d_backward", {f(y), f({4, 6, 5, 5})}, means);
  }
  const Attributes cube = {{"kernel_size", Integers{2, 2, 1}},
                           {"stride", Integers{1, 2, 1}},
                           {"padding", Integers{1, 0, 0}},
                           {"ceil_mode", false},
                           {"count_include_pad", true}};
  add(s, "avg_pool3d", {f({4, 6, 3, 4, 2})}, cube);
  add(s, "avg_pool3d_backward", {f({4, 6, 4, 2, 2}), f({4, 6, 3, 4, 2})}, cube);
  for (const std::string name : {"upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
                                 "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"}) {
    const auto dims = static_cast<std::size_t>(name[name.size() - 2] - '0');
    Shape x = {4, 6, 5, 3, 2}, y = {4, 6, 7, 2, 3};
    x.resize(dims + 2);
    y.resize(dims + 2);
    Attributes attributes = {{"output_size", Integers(y.begin() + 2, y.end())}};
    if (name.find("nearest") == std::string::npos) attributes["align_corners"] = dims == 2;
    add(s, name, {f(x)}, attributes);
    Attributes backward = attributes;
    backward["input_size"] = x;
    add(s, name + "_backward", {f(y)}, backward);
  }
}

void networks(Samples& s) {
  const Attributes eps = {{"eps", 0.1}};
  add(s, "native_layer_norm", {f({6, 4, 5})}, eps);
  add(s, "native_layer_norm", {f({6, 4, 5}), f({5}), f({5})}, eps);
  add(s, "native_layer_norm_backward", {f({6, 4, 5}), f({6, 4, 5}), f({6, 4, 1}), positive({6, 4, 1})});
  add(s, "native_layer_norm_backward", {f({6, 4, 5}), f({6, 4, 5}), f({6, 4, 1}), positive({6, 4, 1}), f({5}), f({5})});
  add(s, "_fused_rms_norm", {f({6, 4, 5}), f({5})}, eps);
  add(s, "_fused_rms_norm_backward", {f({6, 4, 5}), f({6, 4, 5}), positive({6, 4, 1}), f({5})});
  for (const std::int64_t dim : {0, -1}) {
    for (const char* name : {"softmax", "log_softmax"}) add(s, name, {f({5, 6, 4})}, {{"dim", dim}});
    for (const char* name : {"_softmax_backward_data", "_log_softmax_backward_data"})
      add(s, name, {f({5, 6, 4}), f({5, 6, 4})}, {{"dim", dim}});
  }
  for (const bool causal : {false, true}) {
    const std::int64_t keys = causal ? 5 : 6;
    const Attributes attributes = {{"is_causal", causal}, {"scale", 0.7}};
    const auto q = f({3, 6, 5, 4}), k = f({3, 6, keys, 4});
    add(s, "scaled_dot_product_attention", {q, k, k}, attributes);
    add(s, "scaled_dot_product_attention_backward", {q, q, k, k, q, positive({3, 6, 5})}, attributes);
    add(s, "attention_join", {q, positive({3, 6, 5}), q, positive({3, 6, 5})});
    if (causal) continue;
    for (const Shape& bias : {Shape{3, 6, 5, keys}, Shape{3, 1, 5, keys}, Shape{1, 6, 1, keys}}) {
      add(s, "scaled_dot_product_attention", {q, k, k, f(bias)}, attributes);
      add(s, "scaled_dot_product_attention_backward", {q, q, k, k, q, positive({3, 6, 5}), f(bias)}, attributes);
    }
  }
  for (const bool biased : {false, true}) {
    const Attributes attributes = {{"reach", std::int64_t{7}}, {"scale", 0.7}};
    const auto q = f({3, 6, 5, 4}), k = f({3, 6, 7, 4}), ranges = integers({3, 5, 2}, 8);
    const Operands rest = biased ? Operands{ranges, f({6, 13})} : Operands{ranges};
    const auto with = [&](Operands operands) {
      operands.insert(operands.end(), rest.begin(), rest.end());
      return operands;
    };
    add(s, "attention_in_ranges", with({q, k, k}), attributes);
    add(s, "attention_in_ranges_backward", with({q, q, k, k, q, positive({3, 6, 5})}), attributes);
  }
  add(s, "embedding", {f({7, 6}), integers({3, 4}, 7)});
  add(s, "embedding", {f({8, 6}), integers({}, 8)});
  add(s, "embedding", {f({8, 6}), integers({5}, 8)});
  add(s, "embedding_patched", {f({8, 6}), integers({5}, 8), f({5, 6}), integers({3}, 8)});
  add(s, "embedding_dense_backward", {f({3, 4, 6}), integers({3, 4}, 7)}, {{"num_weights", std::int64_t{7}}});
  add(s, "sum_equal_rows", {f({9, 6}), integers({9}, 7)}, {{"num_weights", std::int64_t{7}}});
  add(s, "sgd_rows", {f({7, 6}), f({9, 6}), integers({9}, 7), f({})});
  add(s, "take_rows", {f({7, 6}), integers({3, 1}, 7)});
  for (const std::int64_t n : {3, 9}) add(s, "put_rows", {f({7, 6}), f({n, 1, 6}), integers({n, 1}, 7)});
  add(s, "embedding_dense_backward", {f({3, 4, 6}), integers({3, 4}, 8)}, {{"num_weights", std::int64_t{8}}});
  add(s, "embedding_bag", {f({8, 6}), integers({3, 4}, 8)});
  add(s, "embedding_bag_dense_backward", {f({3, 6}), integers({3, 4}, 7)}, {{"num_weights", std::int64_t{7}}});
  const Attributes ignored = {{"ignore_index", std::int64_t{1}}};
  add(s, "cross_entropy", {f({6, 4}), integers({6}, 4)}, ignored);
  add(s, "cross_entropy_backward", {f({}), f({6, 4}), integers({6}, 4), positive({6})}, ignored);
  const auto with = [&](const char* name, Attribute value) {
    Attributes attributes = ignored;
    attributes[name] = std::move(value);
    return attributes;
  };
  add(s, "cross_entropy_backward", {f({}), f({6, 4}), integers({6}, 9), positive({6})}, with("begin", std::int64_t{3}));
  add(s, "cross_entropy_join", {f({3, 2, 6}), integers({6}, 4)}, with("classes", std::int64_t{4}));
  for (const Integers& ends : {Integers{3, 5}, Integers{3, 5, 7}, Integers{7}}) {
    add(s, "cross_entropy_parts", {f({6, ends.back()}), integers({6}, 7)}, {{"ends", ends}});
    add(s, "cross_entropy_parts", {f({6, ends.back()}), integers({6}, 9)}, {{"ends", ends}, {"begin", std::int64_t{2}}});
    const SampleOperand parts = f({std::ssize(ends), 2, 6}, 3, 4);
    add(s, "cross_entropy_parts_backward", {parts, f({6, ends.back()}), integers({6}, 9), parts},
        {{"ends", ends}, {"begin", std::int64_t{2}}});
  }
  const SampleOperand share = f({6, 5}, 0.1, 0.9);
  add(s, "binary_cross_entropy", {share, share}, {{"reduction", std::int64_t{0}}, {"none", Integers{2}}});
  add(s, "binary_cross_entropy_backward", {f({6, 5}), share, share}, {{"reduction", std::int64_t{0}}, {"none", Integers{3}}});
  add(s, "dropout", {f({6}), integers({}, 1000), integers({6}, 100)}, {{"p", 0.4}});
  add(s, "dropout", {f({4, 6, 5}), integers({}, 1000), integers({4}, 100)}, {{"p", 0.4}});
  add(s, "dropout", {f({3, 2, 41}), integers({}, 1000), integers({3}, 100)}, {{"p", 0.4}});
  add(s, "dropout", {f({6, 8}), integers({}, 1000), integers({6}, 100), integers({6}, 100)}, {{"p", 0.4}});
  add(s, "random_key", {integers({}, 9), integers({}, 9)}, {{"op", std::int64_t{5}}});
}

void optimisers(Samples& s) {
  const Attributes adamw = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  const auto of = [](std::size_t tensors, Operands rest) {
    Operands operands(tensors, positive({6, 5}));
    operands.insert(operands.end(), rest.begin(), rest.end());
    return operands;
  };
  const SampleOperand rate = f({}, 0.01, 0.02), step{{DType::i64, {}}, 3, 9};
  add(s, "adamw", of(4, {rate, step}), adamw);
  add(s, "predict_adamw", of(3, {rate, step}), {{"ahead", std::int64_t{2}}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}});
  add(s, "predict_sgd", of(2, {rate}), {{"ahead", std::int64_t{3}}});
  const Attributes sgd = {{"momentum", 0.9}, {"weight_decay", 0.1}};
  add(s, "sgd", of(3, {rate}), sgd);
  Attributes half_adamw = adamw, half_sgd = sgd;
  half_adamw["update"] = std::string("adamw");
  half_sgd["update"] = std::string("sgd");
  add(s, "update_ahead", of(4, {rate, step, f({})}), half_adamw);
  add(s, "update_validated", of(7, {rate, step, f({}), f({})}), half_adamw);
  add(s, "update_ahead", of(3, {rate, f({})}), half_sgd);
  add(s, "update_validated", of(5, {rate, f({}), f({})}), half_sgd);
}

void collectives(Samples& s) {
  const Attributes axis = {{"axis", std::string("context")}, {"size", std::int64_t{2}}};
  const auto with = [&](const char* name) {
    Attributes attributes = axis;
    attributes[name] = std::int64_t{1};
    return attributes;
  };
  for (const char* name : {"all_reduce", "reduce_gradient"}) add(s, name, {f({6, 4, 5})}, axis);
  for (const char* name : {"all_gather", "reduce_scatter", "all_to_all"}) add(s, name, {f({6, 4, 5})}, with("dim"));
  for (const char* name : {"broadcast", "keep_member"}) add(s, name, {f({6, 4, 5})}, with("root"));
  Attributes shift = with("dim");
  shift.insert({{"by", std::int64_t{1}}, {"length", std::int64_t{8}}, {"message", std::int64_t{3}}});
  add(s, "shift_members", {f({6, 4, 5})}, shift);
}

}  // namespace

std::vector<TensorType> OpSample::operand_types() const {
  std::vector<TensorType> types;
  for (const SampleOperand& operand : operands) types.push_back(operand.type);
  return types;
}

std::string OpSample::text() const {
  const auto type = [](const TensorType& t) { return t.text(); };
  return concat(op.name, "(", join(operand_types(), ", ", type), ") {",
                join(op.attributes, ", ", [](const auto& a) { return concat(a.first, "=", text_of(a.second)); }), "}");
}

std::vector<OpSample> op_samples() {
  Samples samples;
  elementwise(samples);
  reductions(samples);
  views(samples);
  indexing(samples);
  products(samples);
  images(samples);
  resampling(samples);
  networks(samples);
  optimisers(samples);
  collectives(samples);
  return samples;
}

}  // namespace penstock::test
