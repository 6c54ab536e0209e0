// SPDX-License-Identifier: Apache-2.0
#include "exported/randomness.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/text.h"
#include "exported/rebuild.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Every op of ATen's that draws, without its overload.
constexpr std::string_view kRandom[] = {
    "native_dropout", "bernoulli", "rand", "rand_like", "uniform",
    // No counter draws these.
    "randn", "randn_like", "randint", "randint_like", "randperm", "normal", "normal_functional", "log_normal", "exponential", "cauchy",
    "geometric", "poisson", "binomial", "multinomial", "random", "_standard_gamma", "_sample_dirichlet", "dropout", "feature_dropout",
    "alpha_dropout", "feature_alpha_dropout", "_fused_dropout", "rrelu", "rrelu_with_noise_functional", "_cudnn_init_dropout_state",
    "_cudnn_rnn", "_lstm_mps", "miopen_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"};

std::string_view base_name(const Op& op) {
  constexpr std::string_view kPrefix = "aten::";
  std::string_view name = op.name;
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  return name.substr(0, name.find('.'));
}

bool is_attention_with_dropout(const Op& op) {
  return op.name.find("attention") != std::string::npos && number_attribute_or(op, "dropout_p", 0) != 0;
}

bool is_random(const Op& op) {
  return std::ranges::find(kRandom, base_name(op)) != std::end(kRandom) || is_attention_with_dropout(op);
}

// Which numbers a random op has drawn: each of its elements is dropped with probability p.
struct Draw {
  double p = 0;
  Tensor key;
};

class Drawer {
 public:
  // `samples`: 0 where nothing is to be drawn.
  Drawer(const Graph& from, std::int64_t samples) : from_(from), made_(from), samples_(samples), producers_(producers(from)) {
    if (samples == 0) return;
    rows_ = input("rows", {samples});
    seed_ = input("seed", {});
    step_ = input("step", {});
  }

  Graph run();

 private:
  Tensor input(const char* name, Shape shape);
  [[noreturn]] static void refuse(const Op& op, const std::vector<std::string>& details = {});

  bool draws() const { return samples_ > 0; }
  Tensor key() { return draws() ? random_key(seed_, step_, number_++) : Tensor(); }
  Draw draw(double p) { return {p, key()}; }
  Tensor dropped(Tensor x, const Draw& draw) const;
  // True where an element of such a shape is not dropped.
  Tensor kept(Tensor like, const Shape& shape, const Draw& draw) const { return ne(dropped(full(like, shape, 1, DType::f32), draw), 0); }
  // The same as what the op gives: 1 or 0 or, where nothing is drawn, what that is on average.
  Tensor mask(const Op& op, const Draw& draw);

  // The tensors that stand for the op's results, where it draws or reads what was drawn; nothing where it is none of these.
  Tensors made_of(const Op& op);
  Tensors native_dropout(const Op& op);
  Tensors native_dropout_backward(const Op& op);
  Tensors bernoulli(const Op& op);
  Tensors uniform(const Op& op);
  Tensors of_uniform(const Op& op, ValueId drawn);
  Tensors scaled(const Op& op);
  Tensors multiplied(const Op& op);

  const Graph& from_;
  Rebuild made_;
  std::int64_t samples_, number_ = 0;
  IdVector<ValueId, OpId> producers_;
  Tensor rows_, seed_, step_;
  std::map<ValueId, Draw> masks_;         // true or 1 where an element is kept
  std::map<ValueId, Draw> scaled_masks_;  // 1 / (1 - p) where an element is kept
  // Uniform numbers, for which no tensor is made: their key, and what is added to them.
  struct Uniform {
    Tensor key;
    double added = 0;
  };
  std::map<ValueId, Uniform> uniform_;
};

Tensor Drawer::input(const char* name, Shape shape) {
  for (ValueId taken : from_.inputs)
    if (from_.values[taken].name == name)
      throw Error(concat("the module draws random numbers and has an input ", quote(name)),
                  {"rows, seed and step say which numbers are drawn"}, "give the input another name");
  return {&made_.builder, made_.builder.graph.add_input({DType::i64, std::move(shape)}, name).value};
}

void Drawer::refuse(const Op& op, const std::vector<std::string>& details) {
  std::vector<std::string> all = details;
  if (!op.origin.empty()) all.push_back(concat("in module ", quote(op.origin)));
  throw Error(concat("op ", quote(op.name), " draws or reads random numbers in a way that plans could not draw alike"), all,
              is_attention_with_dropout(op)
                  ? "take attention whose dropout is an op of its own (attn_implementation=\"eager\"), or none"
                  : "dropout, bernoulli of one probability, and rand compared with a number are drawn by counters");
}

Tensor Drawer::dropped(Tensor x, const Draw& draw) const {
  const Shape shape = x.shape();
  if (!draws()) return x;
  if (draw.p >= 1) return full_like(x, 0);
  const bool by_sample = !shape.empty() && shape[0] > 0 && shape[0] % samples_ == 0;
  if (by_sample && shape[0] == samples_) return dropout(x, draw.p, draw.key, rows_);
  const Tensor parts = reshape(x, {by_sample ? samples_ : 1, -1});
  return reshape(dropout(parts, draw.p, draw.key, by_sample ? rows_ : slice(rows_, 0, 0, 1)), shape);
}

Tensor Drawer::mask(const Op& op, const Draw& draw) {
  const TensorType& type = from_.type(op.results[0]);
  if (draws()) return to(kept(rows_, type.shape, draw), type.dtype);
  if (!is_floating(type.dtype)) refuse(op, {"without random numbers it would be neither true nor false"});
  return full(made_[from_.inputs[0]], type.shape, 1 - draw.p, type.dtype);
}

// (x) -> (y, mask)
Tensors Drawer::native_dropout(const Op& op) {
  const Tensor x = made_[op.operands[0]];
  const Draw drawn = draw(attribute_or(op, "train", true) ? number_attribute(op, "p") : 0);
  masks_[op.results[1]] = drawn;
  return {dropped(x, drawn), kept(x, x.shape(), drawn)};
}

// (dy, mask) -> dx
Tensors Drawer::native_dropout_backward(const Op& op) {
  const Tensor dy = made_[op.operands[0]], mask = made_[op.operands[1]];
  const double scale = number_attribute(op, "scale");
  const auto drawn = masks_.find(op.operands[1]);
  if (drawn != masks_.end() && std::abs(scale * (1 - drawn->second.p) - 1) < 1e-9) return {dropped(dy, drawn->second)};
  return {dy * to(mask, dy.dtype()) * scale};
}

// 1 with probability p, else 0.
Tensors Drawer::bernoulli(const Op& op) {
  if (op.name != "aten::bernoulli.p") refuse(op, {"its probabilities are a tensor"});
  const Draw drawn = draw(1 - number_attribute(op, "p"));
  masks_[op.results[0]] = drawn;
  return {mask(op, drawn)};
}

// Numbers from 0 to 1.
Tensors Drawer::uniform(const Op& op) {
  const bool unit = base_name(op) != "uniform" || (number_attribute(op, "from") == 0 && number_attribute(op, "to") == 1);
  if (!unit) refuse(op, {concat("from ", number_attribute(op, "from"), " to ", number_attribute(op, "to"))});
  uniform_[op.results[0]] = {key()};
  return {Tensor()};
}

// Ops make of uniform numbers u:
//   add(u) {other=c}                       u + c, of which again no tensor is made
//   lt(u) {other=c}, le(u) {other=c}       true with probability c
//   gt(u) {other=c}, ge(u) {other=c}       true with probability 1 - c
//   aten::floor(u + c)                     1 with probability c, else 0
Tensors Drawer::of_uniform(const Op& op, ValueId drawn) {
  const auto [key, added] = uniform_.at(drawn);
  const bool below = op.name == "lt" || op.name == "le", above = op.name == "gt" || op.name == "ge", floor = op.name == "aten::floor";
  const bool with_number = op.operands.size() == 1 && op.attributes.contains("other");
  const double number = with_number ? number_attribute(op, "other") : 0;
  if (op.name == "add" && with_number && added == 0) {
    uniform_[op.results[0]] = {key, number};
    return {Tensor()};
  }
  if (!(with_number && (below || above)) && !(floor && added >= 0 && added <= 1)) refuse(op);
  const double p = std::clamp(floor ? added : below ? number - added : 1 - (number - added), 0.0, 1.0);
  masks_[op.results[0]] = {1 - p, key};
  return {mask(op, {1 - p, key})};
}

// A mask over the probability that it is of.
Tensors Drawer::scaled(const Op& op) {
  const auto mask = masks_.find(op.operands[0]);
  if (op.operands.size() != 1 || mask == masks_.end()) return {};
  const double number = number_attribute(op, "other"), factor = op.name == "div" ? 1 / number : number;
  if (std::abs(factor * (1 - mask->second.p) - 1) > 1e-9) return {};
  scaled_masks_[op.results[0]] = mask->second;
  return {made_[op.operands[0]] * factor};
}

// A tensor times such a mask of its type is a dropout.
Tensors Drawer::multiplied(const Op& op) {
  if (op.operands.size() != 2) return scaled(op);
  for (std::size_t i : {0, 1}) {
    const auto mask = scaled_masks_.find(op.operands[i]);
    const Tensor x = made_[op.operands[1 - i]];
    if (mask != scaled_masks_.end() && x.type() == from_.type(op.operands[i])) return {dropped(x, mask->second)};
  }
  return {};
}

Tensors Drawer::made_of(const Op& op) {
  const std::string_view name = base_name(op);
  const auto has = [&](std::size_t operands, std::size_t results) {
    return op.operands.size() == operands && op.results.size() == results;
  };
  if (name == "native_dropout" && has(1, 2)) return native_dropout(op);
  if (name == "native_dropout_backward" && has(2, 1)) return native_dropout_backward(op);
  if (name == "bernoulli" && op.results.size() == 1) return bernoulli(op);
  if ((name == "rand" || name == "rand_like" || name == "uniform") && op.results.size() == 1) return uniform(op);
  if (is_random(op)) refuse(op);
  for (ValueId operand : op.operands)
    if (uniform_.contains(operand)) return of_uniform(op, operand);
  if (op.name == "to" && masks_.contains(op.operands[0])) masks_[op.results[0]] = masks_.at(op.operands[0]);
  if (op.name == "div") return scaled(op);
  if (op.name == "mul") return multiplied(op);
  return {};
}

Graph Drawer::run() {
  for (const Op& op : from_.ops) {
    made_.mark(op);
    const Tensors results = made_of(op);
    if (results.empty()) made_.copy(op);
    for (std::size_t i = 0; i < results.size(); ++i) made_[op.results[i]] = results[i];
  }
  for (ValueId output : from_.outputs)
    if (uniform_.contains(output)) refuse(from_.ops[producers_[output]], {"they are a result of the module"});
  return made_.finish();
}

}  // namespace

Graph draw_by_counters(const Graph& joint, std::int64_t samples) {
  return std::ranges::any_of(joint.ops, is_random) ? Drawer(joint, samples).run() : joint;
}

Graph without_draws(const Graph& graph) {
  return std::ranges::any_of(graph.ops, is_random) ? Drawer(graph, 0).run() : graph;
}

}  // namespace penstock
