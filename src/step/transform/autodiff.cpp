// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// Saves the builder's marks, and restores them when the walk ends (also by an Error).
class MarksScope {
 public:
  explicit MarksScope(Builder& builder) : builder_(builder), saved_(builder.marks) {}
  ~MarksScope() { builder_.marks = saved_; }
  MarksScope(const MarksScope&) = delete;

 private:
  Builder& builder_;
  Marks saved_;
};

Marks backward_marks(const Op& op) {
  return {.stage = op.stage, .origin = op.origin, .phase = Phase::backward, .sequence = op.sequence};
}

// One walk back over the forward ops (the tape). Values and ops that it appends are beyond those of the forward graph.
class Walk {
 public:
  Walk(Builder& builder, std::span<const Tensor> with_respect_to)
      : builder_(builder), forward_ops_(builder.graph.ops.size()), active_(builder.graph.values.size()), parts_(active_.size()) {
    for (const Tensor& tensor : with_respect_to) active_[tensor.value()] = true;
    for (const Op& op : builder.graph.ops) {
      if (!any_active(op)) continue;
      for (ValueId result : op.results)
        if (is_floating(builder.graph.type(result).dtype)) active_[result] = true;
    }
  }

  void run(Tensor loss) {
    bool seeded = false;
    for (std::size_t i = forward_ops_; i-- > 0;) {
      // `op` is a copy, as appending moves the ops.
      const Op op = builder_.graph.ops[i];
      builder_.marks = backward_marks(op);
      bool flows = false;
      for (ValueId result : op.results) {
        if (result.value == loss.value()) {
          seed(loss);
          seeded = true;
        }
        flows = join(result) || flows;
      }
      if (flows && any_active(op)) differentiate(op);
    }
    builder_.marks = backward_marks({});
    if (!seeded) seed(loss);
  }

  // Sums the cotangents that flowed to a value; none where nothing flowed. Where all came out of one stage the sum is that stage's, so that
  // one tensor leaves it and not each of them.
  Tensor join(ValueId value) {
    std::vector<Part>& parts = parts_[value];
    if (parts.empty()) return {};
    std::vector<Tensor> tensors;
    for (const Part& part : parts) tensors.push_back(part.tensor);
    const std::string stage = builder_.marks.stage;
    const bool one_stage = std::ranges::all_of(parts, [&](const Part& part) { return part.stage == parts[0].stage; });
    if (one_stage && !stage.empty()) builder_.marks.stage = parts[0].stage;
    parts = {{add_n(tensors), builder_.marks.stage}};
    builder_.marks.stage = stage;
    return parts[0].tensor;
  }

 private:
  // A cotangent, and the stage out of which it flowed.
  struct Part {
    Tensor tensor;
    std::string stage;
  };

  bool any_active(const Op& op) const {
    for (ValueId operand : op.operands)
      if (active_[operand]) return true;
    return false;
  }

  void seed(Tensor loss) { parts_[loss.value()].push_back({full_like(loss, 1), builder_.marks.stage}); }

  void differentiate(const Op& op) {
    const OpDefinition* definition = find_op(op.name);
    const auto own = builder_.vjps.find(op.results[0]);
    if (own == builder_.vjps.end() && (!definition || !definition->vjp))
      throw Error(concat("gradients: ", quote(op.name), definition ? " has no gradient" : " is unknown and has no gradient"),
                  {concat("it stands between the loss and a tensor whose gradient is asked for",
                          op.origin.empty() ? "" : ", made in " + op.origin)},
                  definition ? "" : "call() takes a gradient of your own");
    std::vector<Tensor> operands, results, cotangents;
    std::vector<bool> wanted;
    for (ValueId operand : op.operands) {
      operands.emplace_back(&builder_, operand.value);
      wanted.push_back(active_[operand]);
    }
    for (ValueId result : op.results) {
      results.emplace_back(&builder_, result.value);
      cotangents.push_back(join(result));
    }
    const VjpArguments arguments{op, operands, results, cotangents, wanted};
    const std::vector<Tensor> flowing = own == builder_.vjps.end() ? definition->vjp(arguments) : own->second(arguments);
    if (flowing.size() > op.operands.size())
      throw Error(concat("gradients: ", quote(op.name), " has ", counted(std::ssize(op.operands), "operand"), ", its gradient gives ",
                         counted(std::ssize(flowing), "cotangent")));
    for (std::size_t i = 0; i < flowing.size(); ++i)
      if (wanted[i] && flowing[i]) parts_[op.operands[i]].push_back({flowing[i], op.stage});
  }

  Builder& builder_;
  std::size_t forward_ops_;
  IdVector<ValueId, bool> active_;              // of each value: whether it depends on a tensor whose gradient is asked for
  IdVector<ValueId, std::vector<Part>> parts_;  // the cotangents that flowed to each value so far
};

}  // namespace

std::vector<Tensor> gradients(Tensor loss, std::span<const Tensor> with_respect_to) {
  if (!loss) throw Error("gradients: the loss is no tensor");
  if (!loss.shape().empty() || !is_floating(loss.dtype()))
    throw Error(concat("gradients: the loss must be a floating scalar, not ", loss.type().text()), {}, "sum() makes a scalar");
  Builder& builder = *loss.builder();
  std::vector<Tensor> inputs;
  for (const Tensor& tensor : with_respect_to) {
    inputs.push_back(capture(builder, tensor));
    if (!is_floating(tensor.dtype())) throw Error(concat("gradients: a tensor of type ", tensor.type().text(), " has no gradient"));
  }
  const MarksScope scope(builder);
  Walk walk(builder, inputs);
  walk.run(loss);
  std::vector<Tensor> out;
  for (const Tensor& input : inputs) {
    const Tensor gradient = walk.join(ValueId(input.value()));
    out.push_back(gradient ? gradient : full_like(input, 0));
  }
  return out;
}

}  // namespace penstock
