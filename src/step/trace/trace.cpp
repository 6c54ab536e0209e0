// SPDX-License-Identifier: Apache-2.0
// Traces, scopes and the gradient-accumulation loop.
#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "penstock/trace.h"
#include "transform/passes.h"

namespace penstock {

namespace {

// The builders of the traces that this thread is in, innermost last: scopes set their marks.
thread_local std::vector<Builder*> builders;

class TraceScope {
 public:
  explicit TraceScope(Builder& builder) { builders.push_back(&builder); }
  ~TraceScope() { builders.pop_back(); }
  TraceScope(const TraceScope&) = delete;
};

Builder& innermost(std::string_view what) {
  if (builders.empty())
    throw Error(concat(what, " outside a trace"), {}, "make it inside the function given to trace() or in a model's loss()");
  return *builders.back();
}

// A graph's outputs as values of its builder.
std::vector<ValueId> outputs_of(Builder& builder, const std::vector<Tensor>& results) {
  std::vector<ValueId> outputs;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) throw Error(concat("graph @", builder.graph.name, ": result ", i, " is no tensor"));
    outputs.push_back(ValueId(capture(builder, results[i]).value()));
  }
  return outputs;
}

// The divisors of n that lie next to `count`, below and above it, for a message: "2 or 5".
std::string nearest_divisors(std::int64_t n, std::int64_t count) {
  std::vector<std::string> found;
  for (std::int64_t d = std::min(count, n); d >= 1 && found.empty(); --d) {
    if (n % d == 0) found.push_back(std::to_string(d));
  }
  for (std::int64_t d = count + 1; d <= n; ++d) {
    if (n % d != 0) continue;
    found.push_back(std::to_string(d));
    break;
  }
  return join(found, " or ");
}

TensorType part_type(Tensor whole, int microbatches) {
  TensorType type = whole.type();
  if (type.shape.empty()) throw Error("accumulate cannot split a scalar");
  const std::int64_t rows = type.shape[0];
  if (rows % microbatches != 0) {
    throw Error(concat("a batch of ", rows, " cannot be cut into ", microbatches, " equal micro-batches"),
                {concat("the first dimension of ", type.text(), " is cut")},
                concat("use ", nearest_divisors(rows, microbatches), " micro-batches, or a batch that is a multiple of ", microbatches));
  }
  type.shape[0] = rows / microbatches;
  return type;
}

}  // namespace

void Parameters::set(std::string name, Tensor tensor) {
  const auto [place, added] = index_.try_emplace(name, entries_.size());
  if (added) {
    entries_.emplace_back(std::move(name), tensor);
  } else {
    entries_[place->second].second = tensor;
  }
}

Tensor Parameters::operator[](std::string_view name) const {
  if (const auto found = index_.find(name); found != index_.end()) return entries_[found->second].second;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.first);
  throw Error(concat("no parameter ", quote(name)), {concat("there are ", entries_.size(), " parameters")}, did_you_mean(name, names));
}

Stage::Stage(std::string name) : builder_(&innermost(concat("Stage ", quote(name)))), previous_(std::move(builder_->marks.stage)) {
  builder_->marks.stage = std::move(name);
}

Stage::~Stage() {
  builder_->marks.stage = std::move(previous_);
}

Origin::Origin(std::string_view name) : builder_(&innermost(concat("Origin ", quote(name)))), previous_(std::move(builder_->marks.origin)) {
  builder_->marks.origin = name;
}

Origin::~Origin() {
  builder_->marks.origin = std::move(previous_);
}

Graph trace(const std::string& name, const std::vector<std::pair<std::string, TensorType>>& inputs,
            const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& body) {
  Builder builder(name);
  std::vector<Tensor> tensors;
  for (const auto& [input, type] : inputs) tensors.emplace_back(&builder, builder.graph.add_input(type, input).value);
  const TraceScope scope(builder);
  builder.graph.outputs = outputs_of(builder, body(tensors));
  return std::move(builder.graph);
}

Parameters captured(const Parameters& parameters) {
  Builder& builder = innermost("captured");
  Parameters local;
  for (const auto& [name, tensor] : parameters.entries()) local.set(name, capture(builder, tensor));
  return local;
}

ValueAndGradient value_and_grad(const Parameters& parameters, const std::function<Tensor(const Parameters&)>& loss) {
  innermost("value_and_grad");
  // Without this, code on parameters alone (a cast) would run in the enclosing graph, out of reach of the gradient.
  const Parameters local = captured(parameters);
  std::vector<Tensor> wanted;
  for (const auto& entry : local.entries()) wanted.push_back(entry.second);
  const Tensor value = loss(local);
  if (!value) throw Error("value_and_grad: the loss is no tensor");
  if (!value.shape().empty()) {
    throw Error(concat("value_and_grad needs a scalar loss, not ", value.type().text()), {}, "sum it over the micro-batch");
  }
  const std::vector<Tensor> gradient = gradients(value, wanted);
  ValueAndGradient result{value, {}};
  for (std::size_t i = 0; i < gradient.size(); ++i) result.gradient.set(parameters.entries()[i].first, gradient[i]);
  return result;
}

std::vector<Tensor> accumulate(const std::vector<Tensor>& split, int microbatches,
                               const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& body) {
  Builder& outer = innermost("accumulate");
  if (outer.parent) throw Error("accumulate inside accumulate", {}, "a step has one loop: make the inner one part of the micro-batch");
  if (microbatches < 1) throw Error(concat("accumulate over ", microbatches, " micro-batches"), {}, "use 1 or more");

  Builder inner("body");
  inner.parent = &outer;
  inner.marks = outer.marks;
  Op loop;
  loop.name = "accumulate";
  std::vector<Tensor> parts;
  for (const Tensor& whole : split) {
    const ValueId value = ValueId(capture(outer, whole).value());
    const std::string& name = outer.graph.values[value].name;
    const std::string part = name.empty() ? concat("part", parts.size()) : name;
    parts.emplace_back(&inner, inner.graph.add_input(part_type(whole, microbatches), part).value);
    loop.operands.push_back(value);
  }
  {
    const TraceScope scope(inner);
    inner.graph.outputs = outputs_of(inner, body(parts));
  }
  std::vector<TensorType> types = types_of(inner.graph, inner.graph.outputs);
  loop.operands.insert(loop.operands.end(), inner.captured.begin(), inner.captured.end());
  loop.attributes = {{"microbatches", std::int64_t{microbatches}}, {"split", static_cast<std::int64_t>(split.size())}};
  loop.body = std::make_shared<const Graph>(std::move(inner.graph));
  std::vector<Tensor> sums;
  for (const ValueId value : outer.append_typed(std::move(loop), std::move(types))) sums.emplace_back(&outer, value.value);
  return sums;
}

}  // namespace penstock
