// SPDX-License-Identifier: Apache-2.0
// Modules write out some of what Penstock has an op for, and so do their gradients. Each expression is found by its last op, and what only
// it needs is left to dead code elimination.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "exported/patterns.h"
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Match = Pattern::Match;

// --- gelu by tanh, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

constexpr const char* kInner = "u:mul(add(x, mul(pow(x){3}){0.044715})){0.7978845608}";

Tensor gelu_by_tanh(const Match& m) {
  return gelu(m.tensors.at("x"), "tanh");
}

Tensor gelu_by_tanh_backward(const Match& m) {
  return emit("gelu_backward", {m.tensors.at("dy"), m.tensors.at("x")}, {{"approximate", std::string("tanh")}});
}

// --- RMS norm, weight x rsqrt(mean(x^2) + eps)

constexpr const char* kRoot = "r:rsqrt(add(mean:mean(pow(x){2})){eps})";

// Whether the mean is over the last dim, which is kept.
bool is_over_last(const Match& m) {
  const Tensor x = m.tensors.at("x"), mean = m.tensors.at("mean");
  const Op* op = made_by(mean, "mean");
  return attribute<std::vector<std::int64_t>>(*op, "dim") == std::vector<std::int64_t>{x.rank() - 1} && attribute_or(*op, "keepdim", false);
}

Tensor rms_norm_of(const Match& m) {
  const Tensor x = m.tensors.at("x"), weight = m.tensors.at("weight");
  if (!is_over_last(m) || weight.type() != TensorType{x.dtype(), {x.size(-1)}}) return {};
  return rms_norm(x, weight, m.numbers.at("eps"));
}

// The RMS norm of x that the forward has made; of this weight, where one is given. Null: it has made none.
const Op* norm_of(const Match& m, Tensor weight) {
  const Tensor x = m.tensors.at("x");
  for (const Op& op : x.builder()->graph.ops)
    if (op.name == "_fused_rms_norm" && op.operands[0].value == x.value() && (!weight || op.operands[1].value == weight.value()) &&
        number_attribute(op, "eps") == m.numbers.at("eps"))
      return &op;
  return nullptr;
}

// Result `result` of the gradient of that norm, which is made where it has not been.
Tensor of_norm_backward(const Match& m, Tensor weight, std::size_t result) {
  const Tensor x = m.tensors.at("x"), dy = m.tensors.at("dy");
  const Op* norm = norm_of(m, weight);
  if (!norm || !is_over_last(m)) return {};
  const std::vector<ValueId> operands = {ValueId(dy.value()), norm->operands[0], norm->results[1], norm->operands[1]};
  for (const Op& op : x.builder()->graph.ops)
    if (op.name == "_fused_rms_norm_backward" && op.operands == operands) return {x.builder(), op.results[result].value};
  std::vector<Tensor> tensors;
  for (ValueId operand : operands) tensors.emplace_back(x.builder(), operand.value);
  return emit_all("_fused_rms_norm_backward", tensors)[result];
}

// The sum of dy x rstd over all dims but the last.
Tensor rms_norm_backward_weight(const Match& m) {
  const Tensor x = m.tensors.at("x"), sum = m.tensors.at("sum");
  return sum.shape() == Shape{x.size(-1)} && x.rank() > 1 ? of_norm_backward(m, {}, 1) : Tensor();
}

// rstd g - x rstd^3 sum(g x) / n with g = dy weight; the sum is over the last dim, of n elements.
Tensor rms_norm_backward(const Match& m) {
  const Tensor x = m.tensors.at("x"), sum = m.tensors.at("sum");
  Shape kept = x.shape();
  kept.back() = 1;
  if (sum.shape() != kept || m.numbers.at("n") != static_cast<double>(x.size(-1))) return {};
  const Tensor dx = of_norm_backward(m, m.tensors.at("weight"), 0);
  const auto more = m.tensors.find("more");
  return dx && more != m.tensors.end() ? more->second + dx : dx;
}

struct Fusion {
  Pattern pattern;
  Tensor (*make)(const Match&);
};

const std::vector<Fusion>& fusions() {
  const std::string factor = concat("t:tanh(", kInner, ")"),
                    slope = concat("s:mul(tanh_backward(mul(dy, mul(x){0.5}), ", factor, ")){0.7978845608}");
  const std::string first = concat("mul(g:mul(dy, weight), ", kRoot, ")");
  const std::string second = "mul(div(expand(mul(mul(sum:sum(mul(g, x))){-0.5}, pow(r){3}))){n}, mul(x){2})";
  static const std::vector<Fusion> all = {
      {Pattern(concat("mul(mul(x){0.5}, add(tanh(", kInner, ")){1})")), gelu_by_tanh},
      {Pattern(concat("add(add(", slope, ", mul(mul(s){0.044715}, mul(pow(x){2}){3})), mul(mul(dy, add(t){1})){0.5})")),
       gelu_by_tanh_backward},
      {Pattern(concat("mul(weight, mul(x, ", kRoot, "))")), rms_norm_of},
      {Pattern(concat("sum:sum(mul(dy, mul(x, ", kRoot, ")))")), rms_norm_backward_weight},
      {Pattern(concat("add(", first, ", ", second, ")")), rms_norm_backward},
      {Pattern(concat("add(add(more, ", first, "), ", second, ")")), rms_norm_backward},
  };
  return all;
}

}  // namespace

Tensor fused(Tensor x) {
  const Op* op = x.builder()->producer(ValueId(x.value()));
  if (!op) return {};
  for (const Fusion& fusion : fusions()) {
    if (fusion.pattern.op() != op->name) continue;
    const std::optional<Match> match = fusion.pattern.match(x);
    if (const Tensor made = match ? fusion.make(*match) : Tensor()) return made;
  }
  return {};
}

}  // namespace penstock
