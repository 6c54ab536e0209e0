// SPDX-License-Identifier: Apache-2.0
// Training, gradient, evaluation and generation steps of a model.
#include "penstock/step.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "penstock/error.h"
#include "trace/decays.h"
#include "trace/microbatch_port.h"
#include "trace/update.h"

namespace penstock {

namespace {

using Inputs = std::vector<std::pair<std::string, TensorType>>;

void set_port(Model::Batch& batch, const std::string& name, Tensor tensor) {
  using Batch = Model::Batch;
  static const std::map<std::string, Tensor Batch::*> members = {{"tokens", &Batch::tokens},
                                                                 {"targets", &Batch::targets},
                                                                 {"positions", &Batch::positions},
                                                                 {"ranges", &Batch::ranges},
                                                                 {"inputs", &Batch::inputs},
                                                                 {"input_ranges", &Batch::input_ranges},
                                                                 {"memory_ranges", &Batch::memory_ranges}};
  if (const auto member = members.find(name); member != members.end()) batch.*(member->second) = tensor;
  batch.ports.set(name, tensor);
}

// Returns how many of the port's tensors the batch has; it is not asked of a port that is whole.
std::int64_t size_in_batch(const DataPort& port, int batch, const TextRows& rows) {
  if (port.entries == 0) return batch;
  return rows.parts ? std::accumulate(rows.parts->begin(), rows.parts->end(), std::int64_t{0}) : batch * port.entries;
}

[[noreturn]] void fail_unread(const Model& model, const TextRows& rows) {
  const char* what = rows.inputs > 0 ? "pairs" : "texts";
  const bool reads_padded = model.reads({.inputs = rows.inputs}), reads_shorter = model.reads({.inputs = rows.inputs, .shorter = true});
  throw Error(concat("the model does not read ", rows.several ? "rows of several " : "", what,
                     !rows.several && reads_padded ? " in rows that are shorter than its context" : ""),
              {rows.several || !reads_padded ? "a sample's loss would not be that of the sample alone"
                                             : "a sample's loss would depend on the padding behind it, and so on the samples beside it"},
              !reads_padded   ? "give it texts"
              : reads_shorter ? "give each sample a row of its own: --set batch.planner=dynapipe"
                              : "pad all samples to the context: --set batch.planner=pad");
}

// The ports of the whole batch: the model's own, and those that say where samples stand. Throws Error where the model does not read such
// rows.
Inputs ports_of(const Model& model, const StepShape& shape) {
  const auto& [batch, context, microbatches, count, rows] = shape;
  if (!model.reads(rows)) fail_unread(model, rows);
  Inputs out;
  for (const DataPort& port : model.data(context)) {
    TensorType& type = out.emplace_back(port.name, port.type).second;
    if (!port.whole) type.shape.insert(type.shape.begin(), size_in_batch(port, batch, rows));
  }
  const auto add = [&](const char* name, Shape sizes) { out.emplace_back(name, TensorType{DType::i64, std::move(sizes)}); };
  if (rows.several) add("positions", {batch, context});
  if (rows.several || rows.inputs > 0) add("ranges", {batch, context, 2});
  if (rows.inputs == 0) return out;
  add("inputs", {batch, rows.inputs});
  add("input_ranges", {batch, rows.inputs, 2});
  add("memory_ranges", {batch, context, 2});
  return out;
}

struct BatchTensors {
  Model::Batch batch;
  Tensor count = {};  // none: the model counts
};

// The traced inputs of a step, taken one after the other in the order in which they were declared.
class Reader {
 public:
  explicit Reader(const std::vector<Tensor>& inputs) : inputs_(inputs) {}
  Tensor take() { return inputs_[next_++]; }
  Parameters take(const std::vector<ParameterSpec>& specs) {
    Parameters taken;
    for (const ParameterSpec& spec : specs) taken.set(spec.name, take());
    return taken;
  }
  BatchTensors take_batch(const Inputs& ports, BatchCount count) {
    BatchTensors out;
    Model::Batch& batch = out.batch;
    for (const auto& port : ports) set_port(batch, port.first, take());
    batch.rows = take();
    batch.seed = take();
    if (count == BatchCount::port) out.count = take();
    return out;
  }

 private:
  const std::vector<Tensor>& inputs_;
  std::size_t next_ = 0;
};

// Throws Error where the names of a parameter's dims do not fit its shape.
void check_dims(const ParameterSpec& spec) {
  const Shape& shape = spec.type.shape;
  const auto shown = [](const DimName& dim) { return quote(dim.name); };
  if (!spec.dims.empty() && spec.dims.size() != shape.size())
    throw Error(concat("parameter ", quote(spec.name), " has ", counted(std::ssize(shape), "dim"), ", but ",
                       counted(std::ssize(spec.dims), "name"), " for them"),
                {concat("the type: ", spec.type.text()), concat("the names: ", join(spec.dims, ", ", shown))},
                "give one name for each dim, \"\" for a dim without one, or none at all");
  for (std::size_t i = 0; i < spec.dims.size(); ++i) {
    const DimName& dim = spec.dims[i];
    if (dim.name.find(',') != std::string::npos)
      throw Error(concat("parameter ", quote(spec.name), ": the name ", quote(dim.name), " of a dim has a comma"));
    const std::int64_t units = dim.units == 0 ? 1 : dim.units;
    if (dim.outer >= 1 && units >= 1 && dim.outer <= shape[i] && shape[i] % dim.outer == 0 && shape[i] / dim.outer % units == 0) continue;
    throw Error(concat("parameter ", quote(spec.name), ": dim ", i, ", ", quote(dim.name), ", is not ", counted(dim.outer, "equal block"),
                       dim.units == 0 ? "" : concat(" of ", counted(dim.units, "unit"))),
                {concat("the type: ", spec.type.text())}, "blocks times units must divide the size");
  }
}

std::vector<ParameterSpec> parameters_of(const Model& model) {
  std::vector<ParameterSpec> specs = model.parameters();
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs) {
    if (!names.insert(spec.name).second) throw Error(concat("the model declares parameter ", quote(spec.name), " twice"));
    check_dims(spec);
  }
  return specs;
}

std::vector<ParameterSpec> trained_of(std::vector<ParameterSpec> specs) {
  std::erase_if(specs, [](const ParameterSpec& spec) { return !spec.trained; });
  return specs;
}

void add_state(Inputs& inputs, const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) inputs.emplace_back(spec.name, spec.type);
}

// Where rows have several samples, each token says of which it is.
void add_batch(Inputs& inputs, const Inputs& ports, const StepShape& shape) {
  inputs.insert(inputs.end(), ports.begin(), ports.end());
  inputs.emplace_back("rows", TensorType{DType::i64, shape.rows.several ? Shape{shape.batch, shape.context} : Shape{shape.batch}});
  inputs.emplace_back("seed", TensorType{DType::i64, {}});
  if (shape.count == BatchCount::port) inputs.emplace_back("count", TensorType{DType::i64, {}});
}

// Throws Error where a name is declared twice. Parameters are declared once each, so the second one is a data port.
void check_names(const Inputs& inputs) {
  std::set<std::string> names;
  for (const auto& input : inputs)
    if (!names.insert(input.first).second)
      throw Error(concat("the model's data port ", quote(input.first), " has the name of another input"));
}

// The names of the ports that the loop cuts into micro-batches.
std::vector<std::string> cut_ports(const Model& model, const Model::Batch& batch, int context) {
  std::set<std::string> whole;
  for (const DataPort& port : model.data(context))
    if (port.whole) whole.insert(port.name);
  std::vector<std::string> out;
  for (const auto& entry : batch.ports.entries())
    if (!whole.contains(entry.first)) out.push_back(entry.first);
  return out;
}

// A batch whose tensors the loop cuts: the ports of these names, and the rows.
struct CutBatch {
  const Model::Batch& batch;
  std::vector<std::string> ports;

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> out;
    for (const std::string& port : ports) out.push_back(batch[port]);
    out.push_back(batch.rows);
    return out;
  }
  // The batch as one micro-batch sees it, of its parts of the tensors.
  Model::Batch part(const std::vector<Tensor>& parts) const {
    Model::Batch out = batch;
    for (std::size_t i = 0; i < ports.size(); ++i) set_port(out, ports[i], parts[i]);
    out.rows = parts[ports.size()];
    return out;
  }
};

// Returns the share that the micro-batches behind one leave of what it adds: keep to the power of their number, f64 []. `number`: its own,
// from 0, i64 [1].
Tensor left_behind(Tensor number, double keep, int microbatches) {
  if (keep <= 0) return to(reshape(eq(number, microbatches - 1), {}), DType::f64);
  return exp((to(reshape(number, {}), DType::f64) * -1.0 + (microbatches - 1)) * std::log(keep));
}

struct Sums {
  Tensor loss, count;  // in the loss's dtype; the count is at least 1, so that a batch without targets has loss 0
  Parameters gradients;
  Parameters carried;  // the next values of what the model carries
};

// Returns what the micro-batch adds to the loop's results: loss, gradients, and of what is carried the share that those behind it leave.
std::vector<Tensor> results_of(const StepSums& sums, const std::vector<Carried>& carried, Tensor number, int microbatches) {
  std::vector<Tensor> out = {sums.loss};
  for (const auto& entry : sums.gradients.entries()) out.push_back(entry.second);
  for (const Carried& c : carried) {
    const Tensor added = sums.carried[c.parameter];
    const Op* made = added.builder()->producer(ValueId(added.value()));
    const Stage here(made != nullptr ? made->stage : "");
    out.push_back(c.keep == 1 ? added : added * to(left_behind(number, c.keep, microbatches), added.dtype()));
  }
  return out;
}

// The values that a training step carries from one micro-batch to the next.
struct CarriedBatch {
  std::vector<Carried> carried;
  Tensor numbers;  // of the micro-batches; none: nothing asks for them
};

Sums loss_and_gradients(const Model& model, const Parameters& parameters, const BatchTensors& data, const StepShape& shape,
                        const CarriedBatch& carrying = {}) {
  const int microbatches = shape.microbatches;
  Model::Batch batch = data.batch;
  const Tensor count = data.count ? data.count : model.count(batch);
  const CutBatch cut{batch, cut_ports(model, batch, shape.context)};
  const Parameters shared = model.shared(parameters, data.batch, microbatches);
  for (const auto& [name, tensor] : shared.entries()) batch.ports.set(name, tensor);
  std::vector<Tensor> split = cut.tensors();
  if (carrying.numbers) split.push_back(carrying.numbers);
  std::vector<std::string> names;
  const std::vector<Tensor> results = accumulate(split, microbatches, [&](const auto& parts) {
    const StepSums sums = model.sums(parameters, cut.part(parts));
    for (const auto& entry : sums.gradients.entries()) names.push_back(entry.first);
    return results_of(sums, carrying.carried, parts.back(), microbatches);
  });
  Sums sums{results[0], to(maximum(count, full_like(count, 1)), results[0].dtype()), {}, {}};
  std::size_t next = 1;
  for (const std::string& name : names) sums.gradients.set(name, results[next++]);
  for (const Carried& c : carrying.carried) {
    const Tensor value = parameters[c.parameter];
    sums.carried.set(c.parameter, (c.keep == 1 ? value : value * std::pow(c.keep, microbatches)) + results[next++]);
  }
  return sums;
}

// The number that torch.nn.utils.clip_grad_norm_ adds to the norm that clips. A step whose rates are given is a step of PyTorch's.
constexpr double kClipMargin = 1e-6;

// x divided by a scalar of another dtype.
Tensor over(Tensor x, Tensor scalar) {
  return x / to(scalar, x.dtype());
}

TrainingState take_state(Reader& reader, const std::vector<ParameterSpec>& specs, const Inputs& kept) {
  TrainingState state;
  state.parameters = reader.take(specs);
  for (const auto& each : kept) state.kept.set(each.first, reader.take());
  state.step = reader.take();
  return state;
}

void append(std::vector<Tensor>& out, const Parameters& parameters) {
  for (const auto& entry : parameters.entries()) out.push_back(entry.second);
}

// The learning rate of each group; one for all where there are none.
std::vector<Tensor> rates_of(Reader& reader, Tensor step, const OptimiserOptions& options) {
  const std::size_t groups = std::max<std::size_t>(1, options.groups.size());
  if (!find_decay(options.decay).given) return std::vector<Tensor>(groups, learning_rate_schedule(step, options));
  const Tensor given = reader.take();
  std::vector<Tensor> out;
  for (std::size_t group = 0; group < groups; ++group) out.push_back(select(given, 0, static_cast<std::int64_t>(group)));
  return out;
}

// All parameters after a step, in their order: those that are trained as updated, others as carried or as they were.
Parameters next_parameters(const std::vector<ParameterSpec>& specs, const TrainingState& state, const Parameters& updated,
                           const Parameters& carried) {
  Parameters out = state.parameters;
  for (const ParameterSpec& spec : specs)
    if (spec.trained) out.set(spec.name, updated[spec.name]);
  for (const auto& [name, value] : carried.entries()) out.set(name, value);
  return out;
}

// A micro-batch's tensor in its place among those of the batch, with zeros elsewhere: their sum over the micro-batches is the batch's.
// `rows`: i64, the numbers of the micro-batch's samples.
Tensor in_batch(Tensor x, Tensor rows, int microbatches) {
  Shape batch = x.shape(), mask(batch.size() + 1, 1), one = batch, all = batch;
  batch[0] *= microbatches;
  mask[0] = microbatches;
  one.insert(one.begin(), 1);
  all.insert(all.begin(), microbatches);
  const std::int64_t samples = rows.size(0), end = samples * microbatches;
  const Tensor firsts = slice(arange(x, end, DType::i64), 0, 0, end, samples), first = slice(rows, 0, 0, 1);
  const Tensor mine = expand(reshape(eq(firsts, expand(first, {microbatches})), mask), all);
  return reshape(where(mine, expand(reshape(x, one), all), full(x, all, 0, x.dtype())), batch);
}

// A step whose state, the parameters, stays as it is; `body` gives its outputs.
Graph reading_step(const std::string& name, const std::vector<ParameterSpec>& specs, const Inputs& data, std::vector<std::string> outputs,
                   const std::function<std::vector<Tensor>(const Parameters&, Reader&)>& body) {
  Inputs inputs;
  add_state(inputs, specs);
  inputs.insert(inputs.end(), data.begin(), data.end());
  check_names(inputs);
  Graph graph = trace(name, inputs, [&](const std::vector<Tensor>& tensors) {
    Reader reader(tensors);
    const Parameters parameters = reader.take(specs);
    std::vector<Tensor> out;
    append(out, parameters);
    for (const Tensor& result : body(parameters, reader)) out.push_back(result);
    return out;
  });
  graph.state = static_cast<int>(specs.size());
  graph.output_names = std::move(outputs);
  return graph;
}

}  // namespace

Graph training_step(const Model& model, const StepShape& shape, const OptimiserOptions& options) {
  if (shape.count == BatchCount::port && model.equal_batches())
    throw Error("the model's loss is no sum over the targets of a batch, whichever way that is cut",
                {"so micro-batches of shapes of their own would weigh samples as the cut has it"}, "--set batch.planner=pad");
  const std::vector<ParameterSpec> specs = parameters_of(model), trained = trained_of(specs);
  const Inputs kept = kept_states(options, trained);
  Inputs inputs;
  add_state(inputs, specs);
  inputs.insert(inputs.end(), kept.begin(), kept.end());
  inputs.emplace_back("step", TensorType{DType::i64, {}});
  const int state_size = static_cast<int>(inputs.size());
  const Inputs ports = ports_of(model, shape);
  add_batch(inputs, ports, shape);
  if (find_decay(options.decay).given) {
    const auto groups = static_cast<std::int64_t>(std::max<std::size_t>(1, options.groups.size()));
    inputs.emplace_back("learning_rates", TensorType{DType::f64, {groups}});
  }
  const std::vector<Carried> carried = model.carried();
  const bool numbered = std::ranges::any_of(carried, [](const Carried& c) { return c.keep != 1; });
  if (numbered) inputs.emplace_back(kMicrobatchPort, TensorType{DType::i64, {shape.microbatches}});
  check_names(inputs);

  Graph graph = trace("training_step", inputs, [&](const std::vector<Tensor>& tensors) {
    Reader reader(tensors);
    const TrainingState state = take_state(reader, specs, kept);
    BatchTensors data = reader.take_batch(ports, shape.count);
    data.batch.step = state.step;
    data.batch.parts = shape.rows.parts.value_or(std::vector<std::int64_t>());
    const CarriedBatch carrying{carried, numbered ? tensors.back() : Tensor()};
    const Sums sums = loss_and_gradients(model, state.parameters, data, shape, carrying);
    const Tensor norm = over(global_norm(sums.gradients), sums.count);
    // The mean and the clipping are one factor, so that they take one pass over the gradients.
    const auto unclipped = [&] { return over(full_like(norm, 1), sums.count); };
    const Tensor clipping = find_decay(options.decay).given ? norm + kClipMargin : norm;
    const Tensor factor = options.clip > 0 ? over(clip_factor(clipping, options.clip), sums.count) : unclipped();
    const Tensor step = state.step + 1;
    const std::vector<Tensor> rates = rates_of(reader, step, options);
    const TrainingState next = options.validated && options.clip > 0
                                   ? validated_update(state, {sums.gradients, rates, step}, {unclipped(), factor}, trained, options)
                                   : update(state, {scale_gradients(sums.gradients, factor), rates, step}, trained, options);
    std::vector<Tensor> out;
    append(out, next_parameters(specs, state, next.parameters, sums.carried));
    for (const auto& each : kept) out.push_back(next.kept[each.first]);
    out.insert(out.end(), {next.step, sums.loss / sums.count, norm, to(rates[0], DType::f32)});
    return out;
  });
  graph.state = state_size;
  graph.output_names = {"loss", "gradient_norm", "learning_rate"};
  return graph;
}

Graph gradient_step(const Model& model, const StepShape& shape) {
  const std::vector<ParameterSpec> specs = parameters_of(model);
  const Inputs ports = ports_of(model, shape);
  Inputs data;
  add_batch(data, ports, shape);
  std::vector<std::string> outputs = {"loss"};
  for (const ParameterSpec& spec : trained_of(specs)) outputs.push_back("gradient:" + spec.name);
  return reading_step("gradient_step", specs, data, outputs, [&](const Parameters& parameters, Reader& reader) {
    BatchTensors whole = reader.take_batch(ports, shape.count);
    whole.batch.step = full_like(whole.batch.seed, 0);
    whole.batch.parts = shape.rows.parts.value_or(std::vector<std::int64_t>());
    const Sums sums = loss_and_gradients(model, parameters, whole, shape);
    std::vector<Tensor> out = {sums.loss / sums.count};
    for (const auto& entry : sums.gradients.entries()) out.push_back(over(entry.second, sums.count));
    return out;
  });
}

Graph evaluation_step(const Model& model, const StepShape& shape, bool outputs) {
  std::vector<std::string> names = {"loss_sum", "count"};
  const Inputs ports = ports_of(model, shape);
  Inputs data;
  add_batch(data, ports, shape);
  Graph graph =
      reading_step("evaluation_step", parameters_of(model), data, {}, [&](const Parameters& parameters, Reader& reader) -> Tensors {
        auto [whole, given_count] = reader.take_batch(ports, shape.count);
        whole.training = false;
        const CutBatch cut{whole, cut_ports(model, whole, shape.context)};
        const Parameters shared = model.shared(parameters, whole, shape.microbatches);
        for (const auto& [name, tensor] : shared.entries()) whole.ports.set(name, tensor);
        const auto body = [&](const Tensors& parts) -> Tensors {
          const Parameters read = captured(parameters);
          const Model::Batch part = cut.part(parts);
          Tensors out = {model.loss(read, part)};
          const Parameters given = outputs ? model.outputs(read, part) : Parameters();
          for (const auto& [name, tensor] : given.entries()) {
            names.push_back("output:" + name);
            out.push_back(in_batch(tensor, part.rows, shape.microbatches));
          }
          return out;
        };
        const Tensor count = given_count ? given_count : model.count(whole);
        Tensors results = accumulate(cut.tensors(), shape.microbatches, body);
        results.insert(results.begin() + 1, count);
        return results;
      });
  graph.output_names = std::move(names);
  return graph;
}

Graph generation_step(const Model& model, int context) {
  const Inputs data = {{"tokens", {DType::i64, {1, context}}}};
  return reading_step("generation_step", parameters_of(model), data, {"logits"}, [&](const Parameters& parameters, Reader& reader) {
    return accumulate({reader.take()}, 1, [&](const std::vector<Tensor>& parts) -> std::vector<Tensor> {
      Model::Batch batch;
      set_port(batch, "tokens", parts[0]);
      batch.training = false;
      return {to(model.logits(parameters, batch), DType::f32)};
    });
  });
}

Graph picture_step(const Model& model) {
  const PictureSteps steps = model.picture_steps().value_or(PictureSteps());
  TensorType latents = steps.latents;
  latents.shape.insert(latents.shape.begin(), 1);
  const TensorType whole{DType::i64, {1}};
  const Inputs data = {{"latents", latents}, {"label", whole}, {"level", whole}, {"next", whole}, {"guidance", {latents.dtype, {1}}}};
  return reading_step("picture_step", parameters_of(model), data, {"latents", "picture"},
                      [&](const Parameters& parameters, Reader& reader) {
                        std::vector<Tensor> inputs;
                        for (std::size_t i = 0; i < data.size(); ++i) inputs.push_back(reader.take());
                        return accumulate(inputs, 1, [&](const std::vector<Tensor>& parts) -> std::vector<Tensor> {
                          Model::Batch batch;
                          for (std::size_t i = 0; i < data.size(); ++i) set_port(batch, data[i].first, parts[i]);
                          batch.training = false;
                          const Tensor next = model.next_latents(parameters, batch);
                          return {next, to(model.picture(parameters, next), DType::f32)};
                        });
                      });
}

}  // namespace penstock
