// SPDX-License-Identifier: Apache-2.0
#include "exported/carried.h"

#include <algorithm>

#include "base/text.h"
#include "exported/place.h"
#include "exported/rebuild.h"
#include "ops/infer.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// A value as a function of a buffer's: keep * value + added. Of several copies of the buffer, one behind the other, in any shape, each is
// so.
struct Affine {
  double keep = 0;
  Tensor added = {};  // none: zero
};

constexpr const char* kHint =
    "buffer * number + what does not depend on the buffer can be carried; module.eval() leaves running statistics";

Tensor sum_of(Tensor a, Tensor b) {
  return a && b ? a + b : a ? a : b;
}

// Finds what buffers get added, and makes it behind a copy of the graph.
class Carrier {
 public:
  explicit Carrier(const Graph& from) : from_(from), made_(from), producers_(producers(from)) {
    for (const Op& op : from.ops) made_.copy(op);
  }

  // The buffer's next value in terms of the value that it had.
  Affine next(const std::string& buffer, ValueId output) {
    ValueId input;
    for (ValueId candidate : from_.inputs)
      if (from_.values[candidate].name == buffer) input = candidate;
    if (!input) throw Error(concat("the joint graph has no input ", quote(buffer), ", whose next value it gives"));
    reading_ = {};
    reading_.resize(from_.values.size());
    reading_[input] = true;
    for (const Op& op : from_.ops)
      if (std::ranges::any_of(op.operands, [&](ValueId operand) { return reading_[operand]; }))
        for (ValueId result : op.results) reading_[result] = true;
    return affine(buffer, input, output);
  }

  Tensor tensor(ValueId old) { return made_[old]; }

  Graph finish(const std::vector<Tensor>& outputs) {
    Graph& graph = made_.builder.graph;
    for (const Tensor& output : outputs) graph.outputs.emplace_back(output.value());
    return eliminate_dead_code(graph);
  }

 private:
  Affine affine(const std::string& buffer, ValueId input, ValueId value) {
    if (value == input) return {1, {}};
    if (!reading_[value]) return {0, tensor(value)};
    const Op& op = from_.ops[producers_[value]];
    const bool with_number = op.operands.size() == 1 && op.attributes.contains("other");
    const bool scales = with_number && (op.name == "mul" || op.name == "div"), adds = op.name == "add" || op.name == "sub";
    if (op.name == "to" && is_floating(from_.type(op.operands[0]).dtype) && is_floating(from_.type(value).dtype)) {
      const Affine rounded = affine(buffer, input, op.operands[0]);
      made_.mark(op);
      return {rounded.keep, rounded.added ? to(rounded.added, from_.type(value).dtype) : Tensor()};
    }
    if (is_copying(op, buffer_elements(input))) {
      const Affine copied = affine(buffer, input, op.operands[0]);
      made_.mark(op);
      return {copied.keep, copied.added ? emit(op.name, {copied.added}, op.attributes) : Tensor()};
    }
    const auto of_one_type = [&](ValueId operand) { return from_.type(operand) == from_.type(value); };
    if (!(scales || adds || op.name == "neg") || !std::ranges::all_of(op.operands, of_one_type))
      throw Error(concat("buffer ", quote(buffer), " is updated in a way that micro-batches cannot share"), {concat("by ", place_of(op))},
                  kHint);
    const Affine first = affine(buffer, input, op.operands[0]);
    const Affine second = op.operands.size() > 1 ? affine(buffer, input, op.operands[1]) : Affine();
    made_.mark(op);
    if (op.name == "neg") return scaled(first, -1);
    const double number = with_number ? number_attribute(op, "other") : 0;
    if (scales) return scaled(first, op.name == "mul" ? number : 1 / number);
    const double sign = op.name == "add" ? 1 : -1;
    if (with_number) return {first.keep, sum_of(first.added, full_like(tensor(value), sign * number))};
    const Affine more = scaled(second, sign);
    return {first.keep + more.keep, sum_of(first.added, more.added)};
  }

  std::int64_t buffer_elements(ValueId input) const { return from_.type(input).elements(); }

  // Whether the op keeps copies of so many elements, makes more of them in front, or takes the mean of all.
  bool is_copying(const Op& op, std::int64_t elements) const {
    if (op.operands.size() != 1) return false;
    const TensorType &before = from_.type(op.operands[0]), &behind = from_.type(op.results[0]);
    if (op.name == "reshape" || op.name == "unsqueeze" || op.name == "squeeze") return true;
    if (op.name == "expand") {
      const std::size_t inner =
          static_cast<std::size_t>(std::ranges::find_if(before.shape, [](std::int64_t size) { return size != 1; }) - before.shape.begin());
      const std::int64_t own = std::ssize(before.shape) - static_cast<std::int64_t>(inner);
      return std::equal(before.shape.begin() + static_cast<std::ptrdiff_t>(inner), before.shape.end(), behind.shape.end() - own);
    }
    if (op.name != "mean" || behind.elements() != elements) return false;
    const auto& dims = attribute<std::vector<std::int64_t>>(op, "dim");
    return std::ranges::all_of(dims, [&](std::int64_t dim) { return wrap(dim, std::ssize(before.shape)) < std::ssize(dims); });
  }

  static Affine scaled(const Affine& x, double factor) {
    if (factor == 1) return x;
    return {x.keep * factor, x.added ? x.added * factor : Tensor()};
  }

  const Graph& from_;
  Rebuild made_;
  IdVector<ValueId, OpId> producers_;
  IdVector<ValueId, bool> reading_;  // what depends on the buffer
};

// Throws Error where an op still reads a buffer that changes.
void check_unread(const Graph& joint, const std::vector<CarriedBuffer>& buffers) {
  for (const CarriedBuffer& buffer : buffers) {
    if (buffer.keep == 1 && !buffer.added) continue;
    const auto is_buffer = [&](ValueId value) { return joint.values[value].name == buffer.name; };
    const ValueId input = *std::ranges::find_if(joint.inputs, is_buffer);
    for (const Op& op : joint.ops)
      if (std::ranges::count(op.operands, input) != 0)
        throw Error(concat("buffer ", quote(buffer.name), " is updated, and read besides"), {concat("by ", place_of(op))},
                    "micro-batches may run in any order, so none can read what another one wrote");
  }
}

}  // namespace

CarriedBuffers carried_buffers(const Graph& joint, const std::vector<BufferOutput>& buffers) {
  Carrier carrier(joint);
  CarriedBuffers out;
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < joint.outputs.size(); ++i)
    if (std::ranges::find(buffers, i, &BufferOutput::output) == buffers.end()) outputs.push_back(carrier.tensor(joint.outputs[i]));
  for (const BufferOutput& buffer : buffers) {
    const Affine next = carrier.next(buffer.name, joint.outputs[buffer.output]);
    CarriedBuffer& carried = out.buffers.emplace_back(CarriedBuffer{buffer.name, next.keep});
    if (!next.added) continue;
    carried.added = outputs.size();
    outputs.push_back(next.added);
  }
  out.joint = carrier.finish(outputs);
  check_unread(out.joint, out.buffers);
  return out;
}

}  // namespace penstock
