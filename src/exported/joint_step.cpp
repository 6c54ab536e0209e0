#include "exported/joint_step.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "exported/batch_counts.h"
#include "exported/carried.h"
#include "exported/cotangent_sums.h"
#include "exported/rename.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Input = ExportedInput::Role;
using Output = ExportedOutput::Role;

// Every f32 becomes f64: types, and what ops say of dtypes.
void widen(Graph& graph) {
  for (Value& value : graph.values)
    if (value.type.dtype == DType::f32) value.type.dtype = DType::f64;
  for (Op& op : graph.ops)
    for (auto& [name, attribute] : op.attributes)
      if (DType* dtype = std::get_if<DType>(&attribute); dtype && *dtype == DType::f32) *dtype = DType::f64;
}

// The loss's gradient by itself, the first op of the backward phase: so many times as large. So is then every gradient.
void scale_tangent(Graph& graph, double factor) {
  for (Op& op : graph.ops) {
    if (op.phase != Phase::backward) continue;
    if (op.name != "full" || !graph.type(op.results[0]).shape.empty())
      throw Error(concat("the joint graph's backward phase begins with ", quote(op.name), ", not with the loss's gradient"), {},
                  "export the module again");
    op.attributes["fill_value"] = factor;
    return;
  }
}

CountedInputs counted_inputs(const Exported& exported) {
  CountedInputs out;
  std::set<std::string> updated;
  for (const ExportedOutput& output : exported.outputs)
    if (output.role == Output::buffer) updated.insert(output.name);
  for (const ExportedInput& input : exported.inputs) {
    if (input.role == Input::split) out.split.push_back(input.name);
    if (input.role == Input::whole || (input.role == Input::buffer && !updated.contains(input.name))) out.fixed.push_back(input.name);
  }
  return out;
}

// Where the loss divides by a number of the micro-batch's data, it divides by the batch's instead.
void divide_by_batch(const Exported& exported, JointStep& step) {
  BatchCounts counted = batch_counts(step.graph, counted_inputs(exported), step.loss());
  step.graph = std::move(counted.joint);
  step.counts = std::move(counted.counts);
  step.divisors = std::move(counted.divisors);
}

// Buffers leave the outputs; what is added to them comes behind.
void carry_buffers(JointStep& step) {
  std::vector<BufferOutput> buffers;
  for (std::size_t i = 0; i < step.outputs.size(); ++i)
    if (step.outputs[i].role == Output::buffer) buffers.push_back({i, step.outputs[i].name});
  if (buffers.empty()) return;
  CarriedBuffers found = carried_buffers(step.graph, buffers);
  step.graph = std::move(found.joint);
  std::erase_if(step.outputs, [](const ExportedOutput& output) { return output.role == Output::buffer; });
  for (const CarriedBuffer& buffer : found.buffers) {
    step.carried.push_back({buffer.name, buffer.keep});
    step.added.push_back(buffer.added);
  }
}

}  // namespace

std::size_t JointStep::loss() const {
  return static_cast<std::size_t>(std::ranges::find(outputs, Output::loss, &ExportedOutput::role) - outputs.begin());
}

std::optional<std::size_t> JointStep::given(const std::string& name) const {
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].role == Output::output && outputs[i].name == name) return i;
  return std::nullopt;
}

JointStep joint_step(const Exported& exported, const Sizes& sizes, bool in_f64) {
  JointStep out;
  out.samples = evaluate_size(exported.samples, sizes);
  out.outputs = exported.outputs;
  out.graph = joint_graph(exported, sizes);
  if (in_f64) widen(out.graph);
  if (!exported.loss_is_sum) scale_tangent(out.graph, static_cast<double>(out.samples));
  out.graph = rename_ops(out.graph);
  if (!exported.loss_is_sum) divide_by_batch(exported, out);
  carry_buffers(out);
  out.graph = join_cotangent_sums(out.graph);
  return out;
}

}  // namespace penstock
