// SPDX-License-Identifier: Apache-2.0
#include "support/random_ops.h"

#include <numeric>

#include "base/text.h"
#include "ops/builder.h"
#include "transform/passes.h"

namespace penstock::test {
namespace {

constexpr InputRange kPositive{.low = 0.5, .high = 2};
constexpr InputRange kAwayFromZero{.low = -1, .high = 1, .gap = 0.05};

class CaseMaker {
 public:
  explicit CaseMaker(std::mt19937_64& random) : random_(random), builder_("case") {}

  std::int64_t number(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random_); }
  std::int64_t size() { return number(1, 4); }
  int index(int count) { return static_cast<int>(number(0, count - 1)); }
  bool coin() { return number(0, 1) == 1; }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  Shape shape(int rank) {
    Shape out;
    for (int i = 0; i < rank; ++i) out.push_back(size());
    return out;
  }
  // A shape that broadcasts to `whole`.
  Shape broadcastable(const Shape& whole) {
    Shape out(whole.begin() + index(static_cast<int>(whole.size()) + 1), whole.end());
    for (std::int64_t& s : out)
      if (coin() && coin()) s = 1;
    return out;
  }

  Tensor input(Shape shape, InputRange range = {}, DType dtype = DType::f64) {
    const ValueId value = builder_.graph.add_input({dtype, std::move(shape)}, concat("x", inputs_.size()));
    inputs_.push_back(range);
    const Tensor tensor(&builder_, value.value);
    if (range.differentiable) differentiable_.push_back(tensor);
    return tensor;
  }
  Tensor integers(Shape shape, std::int64_t low, std::int64_t high) {
    return input(std::move(shape), {.low = static_cast<double>(low), .high = static_cast<double>(high), .differentiable = false},
                 DType::i64);
  }

  OpCase finish(std::string op, const std::vector<Tensor>& outputs) {
    std::vector<Tensor> terms;
    for (const Tensor& output : outputs) terms.push_back(sum(output * input(output.shape(), {.differentiable = false})));
    const Tensor loss = add_n(terms);
    builder_.graph.outputs.emplace_back(loss.value());
    for (const Tensor& gradient : gradients(loss, differentiable_)) builder_.graph.outputs.emplace_back(gradient.value());
    return {std::move(op), std::move(builder_.graph), std::move(inputs_)};
  }

 private:
  std::mt19937_64& random_;
  Builder builder_;
  std::vector<InputRange> inputs_;
  std::vector<Tensor> differentiable_;
};

struct Family {
  std::mt19937_64& random;
  std::vector<OpCase>& cases;

  template <class Body>
  void add(const std::string& op, Body&& body) {
    CaseMaker maker(random);
    const std::vector<Tensor> outputs = body(maker);
    cases.push_back(maker.finish(op, outputs));
  }
};

using Tensors = std::vector<Tensor>;

void elementwise_cases(Family family) {
  const auto unary = [&](const char* op, Tensor (*function)(Tensor), InputRange range) {
    family.add(op, [&](CaseMaker& m) { return Tensors{function(m.input(m.shape(2), range))}; });
  };
  unary("neg", neg, {});
  unary("abs", abs, kAwayFromZero);
  unary("exp", exp, {});
  unary("log", log, kPositive);
  unary("log1p", log1p, kPositive);
  unary("sqrt", sqrt, kPositive);
  unary("rsqrt", rsqrt, kPositive);
  unary("sin", sin, {});
  unary("cos", cos, {});
  unary("tanh", tanh, {});
  unary("sigmoid", sigmoid, {});
  unary("erf", erf, {});
  unary("relu", relu, kAwayFromZero);
  unary("silu", silu, {});
}

void binary_cases(Family family) {
  const auto binary = [&](const char* op, auto function, InputRange second) {
    family.add(op, [&](CaseMaker& m) {
      const Shape whole = m.shape(3);
      Shape a = m.broadcastable(whole), b = whole;
      if (m.coin()) std::swap(a, b);
      const Tensor x = m.input(a);
      return Tensors{function(x, m.input(b, second))};
    });
  };
  binary("add", add, {});
  binary("sub", sub, {});
  binary("mul", mul, {});
  binary("div", div, kPositive);
  family.add("pow.Tensor_Tensor", [&](CaseMaker& m) {
    const Tensor base = m.input(m.shape(2), kPositive);
    return Tensors{pow(base, m.input(base.shape()))};
  });
  binary("maximum", maximum, {});
  binary("minimum", minimum, {});
  const auto with_number = [&](const char* op, auto function) {
    family.add(op, [&](CaseMaker& m) { return Tensors{function(m.input(m.shape(2), kPositive), m.real(0.5, 3))}; });
  };
  with_number("add", add);
  with_number("sub", sub);
  with_number("mul", mul);
  with_number("div", div);
  with_number("pow", [](Tensor base, double exponent) { return pow(base, exponent); });
  for (const double exponent : {0.0, 2.0}) family.add("pow", [&](CaseMaker& m) { return Tensors{pow(m.input(m.shape(2)), exponent)}; });
  family.add("where", [](CaseMaker& m) {
    const Shape whole = m.shape(3);
    const Tensor condition = gt(m.input(m.broadcastable(whole), {.differentiable = false}), 0);
    const Tensor a = m.input(m.broadcastable(whole));
    return Tensors{where(condition, a, m.input(whole))};
  });
  for (const char* approximate : {"none", "tanh"})
    family.add("gelu", [&](CaseMaker& m) { return Tensors{gelu(m.input(m.shape(2), {.low = -3, .high = 3}), approximate)}; });
}

void reduction_cases(Family family) {
  const auto reduction = [&](const char* op, Tensor (*function)(Tensor, std::vector<std::int64_t>, bool)) {
    for (const std::vector<std::int64_t>& dims : {std::vector<std::int64_t>{}, {1}, {0, 2}, {-1}})
      family.add(op, [&](CaseMaker& m) { return Tensors{function(m.input(m.shape(3)), dims, m.coin())}; });
  };
  reduction("sum", sum);
  reduction("mean", mean);
  reduction("amax", amax);
  for (const int dim : {0, 1, -1}) family.add("cumsum", [&](CaseMaker& m) { return Tensors{cumsum(m.input(m.shape(3)), dim)}; });
  family.add("add_n", [](CaseMaker& m) {
    const Shape shape = m.shape(2);
    const Tensor a = m.input(shape), b = m.input(shape);
    return Tensors{add_n({a, b, m.input(shape)})};
  });
}

void shape_cases(Family family) {
  family.add("reshape", [](CaseMaker& m) {
    const Shape s = m.shape(3);
    return Tensors{reshape(m.input(s), {s[2], -1})};
  });
  family.add("transpose", [](CaseMaker& m) { return Tensors{transpose(m.input(m.shape(3)), m.index(2), -1)}; });
  family.add("permute", [](CaseMaker& m) { return Tensors{permute(m.input(m.shape(3)), {2, 0, 1})}; });
  family.add("expand", [](CaseMaker& m) {
    const Tensor x = m.input({m.size(), 1});
    return Tensors{expand(x, {m.size(), x.size(0), m.size() + 1})};
  });
  family.add("unsqueeze", [](CaseMaker& m) { return Tensors{unsqueeze(m.input(m.shape(2)), m.index(3))}; });
  family.add("squeeze", [](CaseMaker& m) { return Tensors{squeeze(m.input({m.size(), 1, m.size()}), 1)}; });
  family.add("slice", [](CaseMaker& m) {
    const Tensor x = m.input({m.size(), m.size() + 3});
    return Tensors{slice(x, 1, m.index(2), x.size(1) - m.index(2), m.number(1, 3))};
  });
  family.add("slice_backward", [](CaseMaker& m) {
    const Attributes attributes = {{"dim", 0}, {"start", 1}, {"end", 5}, {"step", 2}, {"input_sizes", Shape{6, 3}}};
    return Tensors{emit("slice_backward", {m.input({2, 3})}, attributes)};
  });
  family.add("select", [](CaseMaker& m) { return Tensors{select(m.input({m.size(), 3}), 1, m.index(3))}; });
  family.add("select_backward", [](CaseMaker& m) {
    const Attributes attributes = {{"dim", 1}, {"index", m.number(0, 3)}, {"input_sizes", Shape{2, 4}}};
    return Tensors{emit("select_backward", {m.input({2})}, attributes)};
  });
  family.add("cat", [](CaseMaker& m) {
    const std::int64_t rows = m.size();
    const Tensor a = m.input({rows, m.size()}), b = m.input({rows, m.size()});
    return Tensors{cat({a, b, a}, -1)};
  });
  family.add("split", [](CaseMaker& m) {
    Tensors pieces = split(m.input({m.size(), 5}), m.number(2, 5), 1);
    if (m.coin() && pieces.size() > 1) pieces.pop_back();
    return pieces;
  });
  // No gradient flows through it.
  family.add("detach", [](CaseMaker& m) {
    const Tensor x = m.input(m.shape(2), {.differentiable = false});
    return Tensors{detach(x) * m.input(x.shape())};
  });
  family.add("constrain", [](CaseMaker& m) { return Tensors{constrain(m.input(m.shape(2)), {"batch", ""})}; });
  family.add("stage_boundary", [](CaseMaker& m) { return Tensors{stage_boundary(m.input(m.shape(2)))}; });
}

void indexing_cases(Family family) {
  for (const int dim : {0, 1, -1}) {
    const auto places = [dim](const Tensor& x, std::int64_t count) {
      Shape shape = x.shape();
      shape[static_cast<std::size_t>(dim < 0 ? dim + 3 : dim)] = count;
      return shape;
    };
    family.add("gather", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3));
      return Tensors{gather(x, dim, m.integers(places(x, m.size()), 0, x.size(dim)))};
    });
    family.add("scatter_add", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3)), index = m.integers(places(x, m.size()), 0, x.size(dim));
      return Tensors{scatter_add(x, dim, index, m.input(index.shape()))};
    });
    // Only one source stays of those for one place, so all places differ.
    family.add("scatter.src", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3)),
                   index = topk(m.input(x.shape(), {.differentiable = false}), 1 + m.index(static_cast<int>(x.size(dim))), dim).indices;
      return Tensors{scatter(x, dim, index, m.input(index.shape()))};
    });
    family.add("index_select", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3));
      return Tensors{index_select(x, dim, m.integers({m.size()}, 0, x.size(dim)))};
    });
    family.add("index_add", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3)), index = m.integers({m.size()}, 0, x.size(dim));
      return Tensors{index_add(x, dim, index, m.input(places(x, index.size(0))))};
    });
    family.add("sort.stable", [&](CaseMaker& m) { return Tensors{sort(m.input(m.shape(3)), dim, m.coin()).values}; });
    family.add("topk", [&](CaseMaker& m) {
      const Tensor x = m.input(m.shape(3));
      return Tensors{topk(x, 1 + m.index(static_cast<int>(x.size(dim))), dim, m.coin()).values};
    });
  }
}

void product_cases(Family family) {
  for (const bool bias : {false, true})
    family.add("linear", [&](CaseMaker& m) {
      const std::int64_t in = m.size(), out = m.size();
      Shape leading = m.shape(m.index(3));
      leading.push_back(in);
      const Tensor x = m.input(leading), weight = m.input({out, in});
      return Tensors{linear(x, weight, bias ? m.input({out}) : Tensor())};
    });
  family.add("mm", [](CaseMaker& m) {
    const Tensor a = m.input(m.shape(2));
    return Tensors{mm(a, m.input({a.size(1), m.size()}))};
  });
  family.add("bmm", [](CaseMaker& m) {
    const Tensor a = m.input(m.shape(3));
    return Tensors{bmm(a, m.input({a.size(0), a.size(2), m.size()}))};
  });
  family.add("addmm", [](CaseMaker& m) {
    const Tensor a = m.input(m.shape(2)), b = m.input({a.size(1), m.size()});
    return Tensors{addmm(m.input(m.broadcastable({a.size(0), b.size(1)})), a, b)};
  });
  for (const bool flat : {false, true})
    family.add("matmul", [&](CaseMaker& m) {
      const Shape leading = m.shape(2);
      Shape a = leading, b = flat ? Shape{} : m.broadcastable(leading);
      const std::int64_t inner = m.size();
      a.insert(a.end(), {m.size(), inner});
      b.insert(b.end(), {inner, m.size()});
      const Tensor x = m.input(a);
      return Tensors{matmul(x, m.input(b))};
    });
}

void image_cases(Family family) {
  for (const bool bias : {false, true})
    family.add("convolution", [&](CaseMaker& m) {
      const std::int64_t kernel = m.number(1, 3), out = m.size();
      const Tensor x = m.input({m.size(), m.size(), m.number(3, 6), m.number(3, 6)});
      const Tensor weight = m.input({out, x.size(1), kernel, kernel});
      return Tensors{
          conv2d(x, weight, bias ? m.input({out}) : Tensor(), {.stride = {m.number(1, 3)}, .padding = {m.number(0, kernel - 1)}})};
    });
  // Groups of one to two channels, places apart, and the way back.
  for (const int dims : {1, 2, 3})
    for (const bool transposed : {false, true})
      family.add("convolution", [&](CaseMaker& m) {
        const std::int64_t groups = m.number(1, 2), dilation = m.number(1, 2), stride = m.number(1, 3);
        Shape x = {m.size(), groups * m.number(1, 2)}, weight = {groups * m.number(1, 2), x[1] / groups};
        if (transposed) weight = {x[1], m.number(1, 2)};
        for (int i = 0; i < dims; ++i) {
          weight.push_back(m.number(1, 2));
          x.push_back(m.number(3, 5));
        }
        const Tensor image = m.input(x);
        return Tensors{convolution(image, m.input(weight), m.coin() ? m.input({transposed ? groups * weight[1] : weight[0]}) : Tensor(),
                                   {.stride = {stride},
                                    .padding = {m.number(0, 1)},
                                    .dilation = {dilation},
                                    .output_padding = {transposed ? stride - 1 : 0},
                                    .groups = groups,
                                    .transposed = transposed})};
      });
  family.add("max_pool2d_with_indices", [](CaseMaker& m) {
    const std::int64_t kernel = m.number(1, 3);
    const Tensor x = m.input({m.size(), m.size(), m.number(3, 6), m.number(3, 6)});
    return Tensors{max_pool2d(x, kernel, m.number(1, 3), m.number(0, kernel / 2))};
  });
  family.add("native_batch_norm", [](CaseMaker& m) {
    const Tensor x = m.input({m.size(), m.size(), m.number(2, 4), 3}, {.low = -2, .high = 2});
    const Tensor weight = m.input({x.size(1)});
    return Tensors{batch_norm(x, weight, m.input({x.size(1)}))};
  });
}

void resampling_cases(Family family) {
  family.add("avg_pool2d", [](CaseMaker& m) {
    const std::int64_t kernel = m.number(1, 3);
    const Tensor x = m.input({m.size(), m.size(), m.number(3, 6), m.number(3, 6)});
    return Tensors{avg_pool2d(x, kernel, m.number(1, 3), {m.number(0, kernel / 2), m.coin(), m.coin()})};
  });
  family.add("avg_pool3d", [](CaseMaker& m) {
    const Tensor x = m.input({m.size(), m.size(), m.number(2, 4), m.number(2, 4), 3});
    return Tensors{avg_pool3d(x, 2, m.number(1, 2), {m.index(2), m.coin(), m.coin()})};
  });
  const std::pair<const char*, const char*> interpolations[] = {{"upsample_nearest1d", "nearest"},    {"upsample_nearest2d", "nearest"},
                                                                {"upsample_nearest3d", "nearest"},    {"upsample_linear1d", "linear"},
                                                                {"upsample_bilinear2d", "bilinear"},  {"upsample_bicubic2d", "bicubic"},
                                                                {"upsample_trilinear3d", "trilinear"}};
  for (const auto& [op, mode] : interpolations)
    family.add(op, [&](CaseMaker& m) {
      Shape x = m.shape(2), size;
      for (int i = 0; i < std::string(op).end()[-2] - '0'; ++i) {
        x.push_back(m.size());
        size.push_back(m.number(1, 6));
      }
      return Tensors{interpolate(m.input(x), size, mode, mode != std::string("nearest") && m.coin())};
    });
}

void network_cases(Family family) {
  for (const bool affine : {false, true})
    family.add("native_layer_norm", [&](CaseMaker& m) {
      const Tensor x = m.input({m.size(), m.size(), 5}, {.low = -2, .high = 2});
      if (!affine) return Tensors{layer_norm(x, {}, {})};
      const Tensor weight = m.input({5});
      return Tensors{layer_norm(x, weight, m.input({5}))};
    });
  family.add("_fused_rms_norm", [](CaseMaker& m) {
    const Tensor x = m.input({m.size(), m.size(), 5}, {.low = -2, .high = 2});
    return Tensors{rms_norm(x, m.input({5}))};
  });
  family.add("softmax", [](CaseMaker& m) { return Tensors{softmax(m.input(m.shape(3)), m.index(3))}; });
  family.add("log_softmax", [](CaseMaker& m) { return Tensors{log_softmax(m.input(m.shape(3)), m.index(3))}; });
  for (const bool causal : {false, true})
    family.add("scaled_dot_product_attention", [&](CaseMaker& m) {
      Shape shape = m.shape(4);
      const Tensor q = m.input(shape);
      if (!causal) shape[2] = m.size();
      const Tensor k = m.input(shape), v = m.input(shape);
      return Tensors{scaled_dot_product_attention(q, k, v, causal, m.coin() ? std::optional<double>(0.7) : std::nullopt)};
    });
  for (const bool causal : {false, true})
    family.add("scaled_dot_product_attention", [&](CaseMaker& m) {
      const Shape shape = m.shape(4);
      const Tensor q = m.input(shape), k = m.input(shape), v = m.input(shape);
      const Tensor bias = m.input({m.coin() ? shape[0] : 1, m.coin() ? shape[1] : 1, m.coin() ? shape[2] : 1, shape[2]});
      return Tensors{scaled_dot_product_attention(q, k, v, {.attn_mask = bias, .is_causal = causal})};
    });
  for (const bool biased : {false, true})
    family.add("attention_in_ranges", [&](CaseMaker& m) {
      Shape shape = m.shape(4);
      const Tensor q = m.input(shape);
      shape[2] = m.number(1, 40);
      const Tensor k = m.input(shape), v = m.input(shape);
      const std::int64_t reach = std::max(q.size(2), k.size(2));
      const Tensor ranges = m.integers({q.size(0), q.size(2), 2}, 0, k.size(2) + 1);
      const Tensor bias = biased ? m.input({q.size(1), 2 * reach - 1}) : Tensor();
      return Tensors{attention_in_ranges(q, k, v, ranges, {reach, bias, m.coin() ? std::optional<double>(0.7) : std::nullopt})};
    });
}

void table_and_loss_cases(Family family) {
  family.add("embedding", [](CaseMaker& m) {
    const Tensor weight = m.input({5, m.size()});
    return Tensors{embedding(weight, m.integers(m.shape(2), 0, 5))};
  });
  family.add("embedding_bag", [](CaseMaker& m) {
    const Tensor weight = m.input({5, m.size()});
    return Tensors{embedding_bag(weight, m.integers(m.shape(1 + m.index(2)), 0, 5))};
  });
  // Class 1 is ignored.
  family.add("cross_entropy", [](CaseMaker& m) {
    const Tensor logits = m.input({m.size(), 4}, {.low = -2, .high = 2});
    return Tensors{cross_entropy(logits, m.integers({logits.size(0)}, 0, 4), 1)};
  });
  // Classes 1 to 4 of 6.
  family.add("cross_entropy_parts", [](CaseMaker& m) {
    const Tensor logits = m.input({m.size(), 4}, {.low = -2, .high = 2});
    return Tensors{cross_entropy_parts(logits, m.integers({logits.size(0)}, 0, 6), 1)};
  });
  family.add("cross_entropy_join", [](CaseMaker& m) {
    const Tensor parts = m.input({m.size(), 2, m.size()}, {.low = -2, .high = 2});
    return Tensors{cross_entropy_join(parts, m.integers({parts.size(2)}, 0, 4), 4, 1)};
  });
  family.add("binary_cross_entropy", [](CaseMaker& m) {
    const InputRange shares{.low = 0.1, .high = 0.9};
    const Tensor x = m.input(m.shape(2), shares);
    return Tensors{binary_cross_entropy(x, m.input(x.shape(), shares))};
  });
  family.add("dropout", [](CaseMaker& m) {
    const Tensor x = m.input(m.shape(3)), key = m.integers({}, 0, 1 << 20);
    return Tensors{dropout(x, 0.4, key, m.integers({x.size(0)}, 0, 100))};
  });
  family.add("dropout", [](CaseMaker& m) {
    const Tensor x = m.input(m.shape(2)), key = m.integers({}, 0, 1 << 20), rows = m.integers({x.size(0)}, 0, 100);
    return Tensors{dropout(x, 0.4, key, rows, m.integers({x.size(0)}, 0, 100))};
  });
}

}  // namespace

std::vector<OpCase> random_cases(std::mt19937_64& random) {
  std::vector<OpCase> cases;
  const Family family{random, cases};
  elementwise_cases(family);
  binary_cases(family);
  reduction_cases(family);
  shape_cases(family);
  indexing_cases(family);
  product_cases(family);
  image_cases(family);
  resampling_cases(family);
  network_cases(family);
  table_and_loss_cases(family);
  return cases;
}

}  // namespace penstock::test
