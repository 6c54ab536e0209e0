// SPDX-License-Identifier: Apache-2.0
#include "exported/exported_model.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "exported/randomness.h"
#include "exported/stage_marks.h"
#include "exported/subgraph.h"
#include "ops/builder.h"
#include "ops/inline_graph.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Input = ExportedInput::Role;
using Output = ExportedOutput::Role;

// `group`: of the optimiser, which says whether weights decay; none: matrices do.
ParameterSpec spec_of(const ExportedInput& input, TensorType type, std::optional<int> group) {
  ParameterSpec out{.name = input.name, .type = std::move(type), .initial = {}};
  out.trained = input.trained;
  out.decay = group || out.type.shape.size() >= 2;
  out.group = group.value_or(0);
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

bool is_split(const Exported& exported, const std::string& name) {
  const auto input = std::ranges::find(exported.inputs, name, &ExportedInput::name);
  return input != exported.inputs.end() && input->role == Input::split;
}

std::string count_name(std::size_t i) {
  return concat("count.", i);
}

// The batch's own tensors that draws read, added to what the module reads.
Parameters with_draws(Parameters given, const Model::Batch& batch) {
  given.set("rows", batch.rows);
  given.set("seed", batch.seed);
  given.set("step", batch.step);
  return given;
}

// x times factor^exponent, where that is another number.
Tensor scaled(Tensor x, double factor, int exponent) {
  return exponent == 0 || factor == 1 ? x : x * std::pow(factor, exponent);
}

// The whole batch's numbers that shared() has made, or ports give for each sample, added to what the module reads.
Parameters with_counts(Parameters given, const JointStep& step, const Model::Batch& batch, bool for_each_sample) {
  for (std::size_t i = 0; i < step.divisors.outputs.size(); ++i)
    given.set(count_name(i), scaled(batch[count_name(i)], for_each_sample ? static_cast<double>(step.samples) : 1.0, step.shares[i]));
  return given;
}

// The tensor, of which one dim is named as that of tokens and the first as that of samples.
Tensor with_sequence(Tensor x, int dim) {
  std::vector<std::string> names(static_cast<std::size_t>(x.rank()));
  names[0] = "batch";
  names[static_cast<std::size_t>(dim)] = "sequence";
  return constrain(x, names);
}

// Throws Error for what is no dim of tokens of the module's data.
void check_sequence(const Exported& exported, const Graph& graph, const std::map<std::string, int>& sequence) {
  for (const auto& [name, dim] : sequence) {
    if (!is_split(exported, name))
      throw Error(concat("there is no sequence in ", quote(name), ": it is no tensor that is cut into micro-batches"));
    const auto input = std::ranges::find(exported.inputs, name, &ExportedInput::name) - exported.inputs.begin();
    const TensorType& type = graph.type(graph.inputs[static_cast<std::size_t>(input)]);
    if (dim < 1 || dim >= std::ssize(type.shape))
      throw Error(concat("the sequence of ", quote(name), " is no dim ", dim, " of ", type.text()), {"samples lie along dim 0"});
  }
}

// The fewest samples that a micro-batch may have.
std::int64_t least_samples(const Exported& exported) {
  Sizes least;
  for (const ExportedSymbol& symbol : exported.symbols) least[symbol.name] = std::max<std::int64_t>(1, symbol.least);
  return evaluate_size(exported.samples, least);
}

}  // namespace

ExportedModel::ExportedModel(Exported exported, ExportedModelOptions options)
    : exported_(std::move(exported)), options_(std::move(options)) {
  if (options_.sizes.empty()) options_.sizes = example_sizes(exported_);
  JointStep usual = joint_step(exported_, options_.sizes, options_.in_f64);
  check_sequence(exported_, usual.graph, options_.sequence);
  std::size_t trained = 0;
  const auto group_of_next = [&] { return options_.groups.empty() ? std::nullopt : std::optional(options_.groups.at(trained++)); };
  for (std::size_t i = 0; i < exported_.inputs.size(); ++i) {
    const ExportedInput& input = exported_.inputs[i];
    const TensorType& type = usual.graph.type(usual.graph.inputs[i]);
    if (input.is_data()) {
      types_[input.name] = type;
      port_of(input, type, usual.samples);
    } else {
      state_.insert(input.name);
      parameters_.push_back(spec_of(input, type, input.trained ? group_of_next() : std::nullopt));
    }
  }
  if (options_.begins.empty()) options_.begins = even_stages(usual.graph, options_.stages);
  mark_stages(usual.graph, options_.begins, options_.order, usual.loss());
  usual_ = &steps_.emplace(options_.sizes, std::move(usual)).first->second;
}

std::vector<DataPort> ExportedModel::own_data() const {
  std::vector<DataPort> out;
  for (const ExportedInput& input : exported_.inputs)
    if (input.is_data()) out.push_back(port_of(input, types_.at(input.name), samples()));
  return out;
}

std::vector<DataPort> ExportedModel::data(std::int64_t) const {
  std::vector<DataPort> out = own_data();
  if (!options_.in_classes) return out;
  const Graph& divisors = usual_->divisors;
  for (std::size_t i = 0; i < divisors.outputs.size(); ++i)
    out.push_back(
        {.name = count_name(i), .type = divisors.type(divisors.outputs[i]), .kind = DataPort::Kind::given, .of = {}, .whole = true});
  return out;
}

bool ExportedModel::generates() const {
  return reads_text(data(1)) && usual_->given("logits");
}

Graph ExportedModel::graph() const {
  return draw_by_counters(usual_->graph, usual_->samples);
}

const JointStep& ExportedModel::step_for(const Sizes& sizes) const {
  const std::scoped_lock lock(mutex_);
  const auto known = steps_.find(sizes);
  if (known != steps_.end()) return known->second;
  JointStep made = joint_step(exported_, sizes, options_.in_f64);
  mark_stages(made.graph, options_.begins, options_.order, made.loss());
  return steps_.emplace(sizes, std::move(made)).first->second;
}

Sizes ExportedModel::sizes_of(const Parameters& inputs) const {
  Sizes out;
  for (const ExportedSymbol& symbol : exported_.symbols) {
    const TensorType type = inputs[symbol.input].type();
    if (symbol.dim >= std::ssize(type.shape))
      throw Error(concat("input ", quote(symbol.input), " of ", exported_.model, " is ", type_of(symbol.input).text(),
                         " in the export, not ", type.text()));
    out[symbol.name] = type.shape[static_cast<std::size_t>(symbol.dim)];
  }
  return out;
}

std::vector<Tensor> ExportedModel::operands(const Graph& graph, const Parameters& parameters, const Parameters& given) const {
  std::vector<Tensor> out;
  for (ValueId input : graph.inputs) {
    const auto& [type, name] = graph.values[input];
    const Tensor tensor = state_.contains(name) ? parameters[name] : given[name];
    if (tensor.type() != type)
      throw Error(concat("input ", quote(name), " of ", exported_.model, " is ", type.text(), " in the export, not ", tensor.type().text()),
                  {}, "give it batches of that shape, or export the module with dynamic=True");
    const auto dim = options_.sequence.find(name);
    out.push_back(dim == options_.sequence.end() ? tensor : with_sequence(tensor, dim->second));
  }
  return out;
}

Tensor ExportedModel::forward(const JointStep& step, std::size_t output, const Parameters& parameters, const Parameters& given,
                              Builder& builder) const {
  const Graph part = without_draws(subgraph(step.graph, "forward", {}, {step.graph.outputs[output]}));
  return inline_graph(builder, part, operands(part, parameters, given))[0];
}

StepSums ExportedModel::sums(const Parameters& parameters, const Batch& batch) const {
  const Parameters given = inputs(batch);
  const JointStep& step = step_for(sizes_of(given));
  const Graph graph = draw_by_counters(step.graph, step.samples);
  const std::vector<Tensor> results = inline_graph(
      *batch.rows.builder(), graph, operands(graph, parameters, with_draws(with_counts(given, step, batch, options_.in_classes), batch)));
  StepSums out;
  out.loss = exported_.loss_is_sum ? results[step.loss()] : results[step.loss()] * static_cast<double>(step.samples);
  for (std::size_t i = 0; i < step.outputs.size(); ++i)
    if (step.outputs[i].role == Output::gradient) out.gradients.set(step.outputs[i].name, results[i]);
  for (std::size_t i = 0; i < step.carried.size(); ++i) {
    const std::string& name = step.carried[i].parameter;
    const auto zero = [&] { return full(batch.rows, parameters[name].shape(), 0, parameters[name].dtype()); };
    out.carried.set(name, step.added[i] ? results[*step.added[i]] : zero());
  }
  return out;
}

Tensor ExportedModel::loss(const Parameters& parameters, const Batch& batch) const {
  const Parameters given = inputs(batch);
  const JointStep& step = step_for(sizes_of(given));
  const Tensor loss = forward(step, step.loss(), parameters, with_counts(given, step, batch, options_.in_classes), *batch.rows.builder());
  return exported_.loss_is_sum ? loss : loss * static_cast<double>(step.samples);
}

Parameters ExportedModel::outputs(const Parameters& parameters, const Batch& batch) const {
  const Parameters given = inputs(batch);
  const JointStep& step = step_for(sizes_of(given));
  Parameters out;
  for (std::size_t i = 0; i < step.outputs.size(); ++i)
    if (const Shape& shape = step.graph.type(step.graph.outputs[i]).shape;
        step.outputs[i].role == Output::output && !shape.empty() && shape[0] == step.samples)
      out.set(step.outputs[i].name,
              forward(step, i, parameters, with_counts(given, step, batch, options_.in_classes), *batch.rows.builder()));
  return out;
}

Tensor ExportedModel::logits(const Parameters& parameters, const Batch& batch) const {
  const std::optional<std::size_t> output = usual_->given("logits");
  if (!output)
    throw Error(concat(exported_.model, " returns no \"logits\", so it cannot continue a text"), {},
                "export a module that returns them beside its loss: {\"loss\": loss, \"logits\": logits}");
  if (!generates()) throw Error(concat(exported_.model, " reads no text, so it cannot continue one"));
  const std::int64_t rows = batch.tokens.size(0), least = std::max(rows, least_samples(exported_));
  const Parameters read = inputs(batch);
  Parameters given;
  for (const auto& [name, tensor] : read.entries()) {
    const bool again = least > rows && is_split(exported_, name);
    given.set(name, again ? slice(cat(std::vector<Tensor>(at((least + rows - 1) / rows), tensor), 0), 0, 0, least) : tensor);
  }
  const JointStep& step = step_for(sizes_of(given));
  return slice(forward(step, *output, parameters, given, *batch.tokens.builder()), 0, 0, rows);
}

Parameters ExportedModel::shared(const Parameters& parameters, const Batch& whole, int microbatches) const {
  Parameters out;
  if (usual_->divisors.outputs.empty() || options_.in_classes) return out;
  const Parameters given = inputs(whole);
  Sizes sizes = sizes_of(given);
  for (const ExportedSymbol& symbol : exported_.symbols)
    if (symbol.dim == 0 && is_split(exported_, symbol.input)) sizes[symbol.name] /= microbatches;
  const JointStep& step = step_for(sizes);
  Builder& builder = *whole.rows.builder();
  Parameters sums = given;
  std::size_t next = 0;
  for (const Graph& counts : step.counts) {
    std::vector<std::vector<Tensor>> counted(counts.outputs.size());
    for (std::int64_t j = 0; j < microbatches; ++j) {
      Parameters part = sums;
      for (ValueId input : counts.inputs)
        if (const std::string& name = counts.values[input].name; is_split(exported_, name))
          part.set(name, slice(given[name], 0, j * step.samples, (j + 1) * step.samples));
      const std::vector<Tensor> found = inline_graph(builder, counts, operands(counts, parameters, part));
      for (std::size_t i = 0; i < found.size(); ++i) counted[i].push_back(found[i]);
    }
    for (const std::vector<Tensor>& each : counted) {
      const Tensor sum = add_n(each);
      sums.set(concat("sum.", next), scaled(sum, microbatches, step.means[next] ? -1 : 0));
      ++next;
    }
  }
  const std::vector<Tensor> divisors = inline_graph(builder, step.divisors, operands(step.divisors, parameters, sums));
  for (std::size_t i = 0; i < divisors.size(); ++i) out.set(count_name(i), scaled(divisors[i], microbatches, -step.shares[i]));
  return out;
}

Tensor ExportedModel::count(const Batch& batch) const {
  return full(batch.rows, {}, exported_.loss_is_sum ? 1.0 : static_cast<double>(batch.rows.size(0)), DType::i64);
}

}  // namespace penstock
