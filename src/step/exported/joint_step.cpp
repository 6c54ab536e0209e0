// SPDX-License-Identifier: Apache-2.0
#include "exported/joint_step.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "exported/batch_counts.h"
#include "exported/carried.h"
#include "exported/cotangent_sums.h"
#include "exported/rename.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Input = ExportedInput::Role;
using Output = ExportedOutput::Role;

// Whether it is the number of a micro-batch's samples.
bool is_samples(const Exported& exported, const ExportedSymbol& symbol) {
  const auto input = std::ranges::find(exported.inputs, symbol.input, &ExportedInput::name);
  return symbol.dim == 0 && input != exported.inputs.end() && input->role == Input::split;
}

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

// The joint graph in our ops, with the loss's gradient as the step takes it.
Graph renamed_graph(const Exported& exported, const Sizes& sizes, bool in_f64) {
  Graph graph = joint_graph(exported, sizes);
  if (in_f64) widen(graph);
  if (!exported.loss_is_sum) scale_tangent(graph, static_cast<double>(evaluate_size(exported.samples, sizes)));
  return rename_ops(graph);
}

// Returns how the numbers of an op grow where the samples are twice as many: not at all (0); what it multiplies or divides by, or is, by
// twice (1), or as their reciprocal (-1); none: otherwise.
std::optional<int> growth(const Op& op, const Op& twice) {
  std::optional<int> out = 0;
  for (const auto& [name, value] : op.attributes) {
    const bool scales = name == "other" || name == "fill_value";
    if ((!scales && name != "exponent" && !std::holds_alternative<double>(value)) || !twice.attributes.contains(name)) continue;
    const double before = number_attribute(op, name), behind = number_attribute(twice, name);
    if (before == behind || (std::isnan(before) && std::isnan(behind))) continue;
    const bool known = scales && (op.name == "full" || op.name == "mul" || op.name == "div");
    out = known && behind == 2 * before ? std::optional(1) : known && 2 * behind == before ? std::optional(-1) : std::nullopt;
    if (!out) return out;
  }
  return out;
}

// Which numbers of the graph's ops grow with the samples, found by the graph of twice as many; none where there is no such graph.
std::optional<NumberGrowth> literals_of(const Exported& exported, Sizes sizes, const JointStep& step) {
  const Graph& graph = step.graph;
  for (const ExportedSymbol& symbol : exported.symbols)
    if (is_samples(exported, symbol)) sizes[symbol.name] *= 2;
  NumberGrowth out;
  try {
    const bool symbolic = evaluate_size(exported.samples, sizes) == 2 * step.samples;
    if (!symbolic && !exported.growth) return std::nullopt;
    const Graph twice = rename_ops(joint_graph(exported, sizes, Samples::twice));
    if (twice.ops.size() != graph.ops.size()) return std::nullopt;
    for (OpId id : graph.ops.ids()) {
      if (graph.ops[id].name != twice.ops[id].name) return std::nullopt;
      const std::optional<int> grown = graph.ops[id].phase == Phase::backward ? 0 : growth(graph.ops[id], twice.ops[id]);
      if (grown != 0) out[id] = grown;
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return out;
}

// Makes the loss take numbers that depend on the micro-batch's data alone from the whole batch instead.
void count_in_batch(const Exported& exported, const Sizes& sizes, JointStep& step) {
  const std::optional<NumberGrowth> literals = literals_of(exported, sizes, step);
  BatchCounts counted = batch_counts(step.graph, counted_inputs(exported), {step.loss(), exported.loss_is_sum, literals});
  step.graph = std::move(counted.joint);
  step.counts = std::move(counted.counts);
  step.means = std::move(counted.means);
  step.divisors = std::move(counted.divisors);
  step.shares = std::move(counted.shares);
  step.notes = std::move(counted.notes);
  if (exported.growth && !literals)  // as where x * 1.0 is x, and x * 0.5 is not
    step.notes.emplace_back(
        "a number depends on how many samples there are, and with twice as many other ops are needed: how cannot be told");
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
  out.graph = renamed_graph(exported, sizes, in_f64);
  count_in_batch(exported, sizes, out);
  carry_buffers(out);
  out.graph = join_cotangent_sums(out.graph);
  return out;
}

}  // namespace penstock
