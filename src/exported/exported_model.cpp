#include "exported/exported_model.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "exported/batch_counts.h"
#include "exported/carried.h"
#include "exported/cotangent_sums.h"
#include "exported/inline_graph.h"
#include "exported/randomness.h"
#include "exported/rename.h"
#include "exported/stage_marks.h"
#include "exported/subgraph.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using Input = ExportedInput::Role;
using Output = ExportedOutput::Role;

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

ParameterSpec spec_of(const ExportedInput& input, TensorType type, int group) {
  ParameterSpec out{.name = input.name, .type = std::move(type), .initial = {}};
  out.trained = input.trained;
  out.group = group;
  return out;
}

DataPort port_of(const ExportedInput& input, TensorType type, std::int64_t samples) {
  DataPort out{.name = input.name, .type = std::move(type), .kind = DataPort::Kind::given, .below = 0, .of = {}};
  out.whole = input.role == Input::whole;
  if (out.whole) return out;
  if (out.type.shape.empty() || out.type.shape[0] != samples)
    throw Error(concat("input ", quote(input.name), " is ", out.type.text(), ", not of ", counted(samples, "sample")), {},
                "what is cut into micro-batches has the samples along its first dim");
  out.type.shape.erase(out.type.shape.begin());
  return out;
}

}  // namespace

ExportedModel::ExportedModel(const Exported& exported, const ExportedModelOptions& options)
    : loss_is_sum_(exported.loss_is_sum), samples_(evaluate_size(exported.samples, options.sizes)) {
  Graph joint = joint_graph(exported, options.sizes);
  std::size_t group = 0;
  for (std::size_t i = 0; i < exported.inputs.size(); ++i) {
    const ExportedInput& input = exported.inputs[i];
    const TensorType& type = joint.type(joint.inputs[i]);
    if (input.role == Input::split || input.role == Input::whole)
      ports_.push_back(port_of(input, type, samples_));
    else
      parameters_.push_back(spec_of(input, type, input.trained && !options.groups.empty() ? options.groups.at(group) : 0));
    group += input.trained;
  }
  for (std::size_t i = 0; i < exported.outputs.size(); ++i) {
    if (exported.outputs[i].role == Output::loss) loss_ = i;
    if (exported.outputs[i].role == Output::output) results_.emplace_back(exported.outputs[i].name, i);
    if (exported.outputs[i].role == Output::gradient) gradients_.emplace_back(exported.outputs[i].name, i);
  }
  if (!loss_is_sum_) scale_tangent(joint, static_cast<double>(samples_));
  graph_ = rename_ops(joint);
  if (!loss_is_sum_) divide_by_batch(exported);
  carry_buffers(exported);
  graph_ = join_cotangent_sums(draw_by_counters(graph_, samples_));
  begins_ = options.begins.empty() ? even_stages(graph_, options.stages) : options.begins;
  mark_stages(graph_, begins_);
}

// Where the loss divides by a number of the micro-batch's data, it divides by the batch's instead.
void ExportedModel::divide_by_batch(const Exported& exported) {
  CountedInputs inputs;
  std::set<std::string> updated;
  for (const ExportedOutput& output : exported.outputs)
    if (output.role == Output::buffer) updated.insert(output.name);
  for (const ExportedInput& input : exported.inputs) {
    if (input.role == Input::split) inputs.split.push_back(input.name);
    if (input.role == Input::whole || (input.role == Input::buffer && !updated.contains(input.name))) inputs.fixed.push_back(input.name);
  }
  BatchCounts counted = batch_counts(graph_, inputs, loss_);
  graph_ = std::move(counted.joint);
  counts_ = std::move(counted.counts);
  divisors_ = std::move(counted.divisors);
}

void ExportedModel::carry_buffers(const Exported& exported) {
  std::vector<BufferOutput> buffers;
  for (std::size_t i = 0; i < exported.outputs.size(); ++i)
    if (exported.outputs[i].role == Output::buffer) buffers.push_back({i, exported.outputs[i].name});
  if (buffers.empty()) return;
  CarriedBuffers found = carried_buffers(graph_, buffers);
  graph_ = std::move(found.joint);
  // What is carried leaves the outputs, so those behind it have moved.
  const auto moved = [&](std::size_t output) {
    return output - static_cast<std::size_t>(std::ranges::count_if(buffers, [&](const BufferOutput& b) { return b.output < output; }));
  };
  loss_ = moved(loss_);
  for (auto& [name, output] : gradients_) output = moved(output);
  for (auto& [name, output] : results_) output = moved(output);
  for (const CarriedBuffer& buffer : found.buffers) {
    carried_.push_back({buffer.name, buffer.keep});
    added_.push_back(buffer.added);
  }
}

std::vector<DataPort> ExportedModel::data(std::int64_t) const {
  return ports_;
}

std::vector<Tensor> ExportedModel::operands(const Graph& graph, const Parameters& parameters, const Batch& batch) const {
  const std::map<std::string_view, Tensor> given = {{"rows", batch.rows}, {"seed", batch.seed}, {"step", batch.step}};
  std::vector<Tensor> out;
  for (ValueId input : graph.inputs) {
    const std::string& name = graph.values[input].name;
    const bool is_state = std::ranges::find(parameters_, name, &ParameterSpec::name) != parameters_.end();
    const auto found = given.find(name);
    out.push_back(is_state ? parameters[name] : found != given.end() ? found->second : batch[name]);
  }
  return out;
}

StepSums ExportedModel::sums(const Parameters& parameters, const Batch& batch) const {
  const std::vector<Tensor> results = inline_graph(*batch.rows.builder(), graph_, operands(graph_, parameters, batch));
  StepSums out;
  out.loss = loss_is_sum_ ? results[loss_] : results[loss_] * static_cast<double>(samples_);
  for (const auto& [name, output] : gradients_) out.gradients.set(name, results[output]);
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const std::string& name = carried_[i].parameter;
    out.carried.set(name, added_[i] ? results[*added_[i]] : full(batch.rows, parameters[name].shape(), 0, parameters[name].dtype()));
  }
  return out;
}

Tensor ExportedModel::forward(std::size_t output, const Parameters& parameters, const Batch& batch) const {
  const Graph part = subgraph(graph_, "forward", {}, {graph_.outputs[output]});
  return inline_graph(*batch.rows.builder(), part, operands(part, parameters, batch))[0];
}

Parameters ExportedModel::outputs(const Parameters& parameters, const Batch& batch) const {
  Parameters out;
  for (const auto& [name, output] : results_)
    if (const Shape& shape = graph_.type(graph_.outputs[output]).shape; !shape.empty() && shape[0] == samples_)
      out.set(name, forward(output, parameters, batch));
  return out;
}

Parameters ExportedModel::shared(const Parameters& parameters, const Batch& whole, int microbatches) const {
  Parameters out;
  if (counts_.outputs.empty()) return out;
  Builder& builder = *whole.rows.builder();
  std::vector<std::vector<Tensor>> parts(counts_.outputs.size());
  for (std::int64_t j = 0; j < microbatches; ++j) {
    Batch part = whole;
    for (const DataPort& port : ports_)
      if (!port.whole) part.ports.set(port.name, slice(whole[port.name], 0, j * samples_, (j + 1) * samples_));
    const std::vector<Tensor> counted = inline_graph(builder, counts_, operands(counts_, parameters, part));
    for (std::size_t i = 0; i < counted.size(); ++i) parts[i].push_back(counted[i]);
  }
  Batch sums = whole;
  for (std::size_t i = 0; i < parts.size(); ++i) sums.ports.set(concat("sum.", i), add_n(parts[i]));
  const std::vector<Tensor> divisors = inline_graph(builder, divisors_, operands(divisors_, parameters, sums));
  for (std::size_t i = 0; i < divisors.size(); ++i) out.set(concat("count.", i), divisors[i] * (1.0 / microbatches));
  return out;
}

Tensor ExportedModel::loss(const Parameters& parameters, const Batch& batch) const {
  const Tensor loss = forward(loss_, parameters, batch);
  return loss_is_sum_ ? loss : loss * static_cast<double>(samples_);
}

Tensor ExportedModel::count(const Batch& batch) const {
  return full(batch.rows, {}, loss_is_sum_ ? 1.0 : static_cast<double>(batch.rows.size(0)), DType::i64);
}

}  // namespace penstock
