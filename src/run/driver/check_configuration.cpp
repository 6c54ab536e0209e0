// SPDX-License-Identifier: Apache-2.0
#include "driver/check_configuration.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "driver/check_window.h"
#include "driver/controller.h"
#include "penstock/error.h"
#include "program/backends.h"
#include "schedule/in_one_row.h"

namespace penstock {
namespace {

// Named samples where the step has any, else a drawn batch.
class CheckData : public DataSource {
 public:
  CheckData(const Config& config, const Model& model) : drawn_(data_of(config, model), vocabulary_of(config)) {
    const Config::Data& data = config.data;
    if (plans_batches(config) || !data.text.empty() || !data.documents.empty() || !data.pairs.empty()) named_ = make_dataset(config, model);
  }
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override {
    const DataSource& from = input.samples.empty() ? static_cast<const DataSource&>(drawn_) : *named_;
    from.fill(port, input, first_row, rows, out);
  }
  std::uint64_t fingerprint() const override { return named_ ? named_->fingerprint() : 0; }
  const Dataset* named() const { return named_.get(); }

 private:
  RandomBatch drawn_;
  std::shared_ptr<const Dataset> named_;  // what the configuration names; none: it names no data
};

// Returns how many stages feed none: each of them adds up a loss of its own.
std::size_t last_stages(const StageShape& shape) {
  std::vector<bool> feeds(shape.predecessors.size());
  for (const auto& before : shape.predecessors)
    for (const std::int32_t stage : before) feeds[static_cast<std::size_t>(stage)] = true;
  return static_cast<std::size_t>(std::ranges::count(feeds, false));
}

// Returns the batches to compare, of `steps` steps each.
std::vector<StepInput> inputs_of(const Config& config, const CheckData& data, std::int64_t position, std::int64_t steps) {
  std::vector<StepInput> out;
  const StepInput first{.step = 1, .seed = config.train.seed, .steps = steps};
  if (data.named()) {
    StepInput& input = out.emplace_back(first);
    for (std::int64_t step = 0; step < steps; ++step)
      std::ranges::copy(data.named()->training_samples(position + step * config.train.batch), std::back_inserter(input.samples));
  }
  if (!plans_batches(config)) out.push_back(first);
  return out;
}

// Makes a program ready to run from this state.
Program ready(const CheckOptions& o, Program program, const StateSource& state, Cluster& devices) {
  o.choose_kernels(program);
  devices.load(program);
  devices.set_state(state);
  return program;
}

std::optional<CheckResult> check_step(const CheckOptions& o, const Prepared& pipelined) {
  const Prepared sequential = prepare_sequential(o.config, o.models, pipelined.model->equal_batches() ? step_microbatches(pipelined) : 1);
  const TrainingStart start = o.start(pipelined);
  const auto data = std::make_shared<CheckData>(o.config, *sequential.model);
  const std::unique_ptr<Cluster> cluster = o.cluster(devices_of_actors(pipelined), data);
  if (cluster == nullptr) return std::nullopt;
  const std::unique_ptr<Cluster> one = o.local(1, data);
  check_choices(o.config);
  const PlanStep plan = plans_batches(o.config) ? batch_planner(o.config, pipelined, *data->named()) : PlanStep();
  Program program;
  if (!plan) {
    // Compile the program that `train` runs, so that what it refuses is refused here.
    program = ready(o, compile_gradients(o.config, pipelined), start.state, *cluster);
  }
  const Program whole = ready(o, compile_gradients(o.config, sequential), start.state, *one);
  const std::vector<StepInput> inputs = inputs_of(o.config, *data, start.position, 1);
  CheckResult out{.comparison = {}, .tolerance = tolerance_of(o.config.train.dtype)};
  for (const StepInput& input : inputs) {
    const StepGradients expected = step_gradients(whole, *one, sequential.parameters, input);
    StepInput cut = input;
    if (plan) {
      const BatchStep batch = plan(input.samples);
      cut.samples = batch.samples;
      cut.begins = batch.begins;
      program = ready(o, gradient_program(o.config, pipelined, batch), start.state, *cluster);
    }
    const StepGradients found = step_gradients(program, *cluster, pipelined.parameters, cut);
    out.comparison = larger(out.comparison, compare(found, expected));
    if (!o.dump.empty() && &input == &inputs.front()) dump_check(o.dump, o.config, sequential, *one, *data, input, expected, found);
  }
  return out;
}

// A window of steps: the pipelined table beside its own actions in one row, of each worker where actors have workers. Where actors are
// single devices otherwise, and no two add up a parameter's gradient, both must have the same bits.
std::optional<CheckResult> check_window(const CheckOptions& o, const Prepared& pipelined) {
  if (!o.dump.empty())
    throw Error(concat("--dump writes the gradients of one step, and the table is for ", pipelined.schedule.steps, " steps"), {},
                "leave out --dump or --window");
  check_choices(o.config);
  const bool has_workers = o.config.pipeline.program.distance >= 0;
  Config plain = o.config;
  plain.pipeline.program.prefetch = false;
  Prepared in_row = prepare(plain, in_one_row(pipelined.schedule, shape_of(pipelined.schedule)), pipelined.microbatches, o.models);
  if (has_workers) spread_actors(plain, in_row);
  const TrainingStart start = o.start(pipelined);
  const auto data = std::make_shared<CheckData>(o.config, *in_row.model);
  const std::vector<int> counts = devices_of_actors(pipelined);
  const std::unique_ptr<Cluster> cluster = o.cluster(counts, data);
  if (cluster == nullptr) return std::nullopt;
  const std::unique_ptr<Cluster> one = o.local(devices_of_actors(in_row)[0], data);
  const Program program = compile_training(o.config, pipelined), row = compile_training(plain, in_row);
  // Workers whose stages lie differently add up what each has in another order, too.
  const bool in_order = !find_backend(o.config.pipeline.backend).sums_in_any_order && pipelined.options.others.empty();
  const bool alike = in_order || pipelined.options.devices[0] < 3;
  const bool is_single =
      std::ranges::max(counts) == 1 && !has_trained_copies(program, pipelined) && last_stages(shape_of(pipelined.schedule)) == 1;
  const bool is_exact = has_workers ? alike : is_single;
  CheckResult out{.compared = "parameter", .comparison = {}, .tolerance = is_exact ? 0 : tolerance_of(o.config.train.dtype)};
  for (const StepInput& input : inputs_of(o.config, *data, start.position, pipelined.schedule.steps)) {
    const WindowEnd expected = run_window(ready(o, row, start.state, *one), *one, in_row, input),
                    found = run_window(ready(o, program, start.state, *cluster), *cluster, pipelined, input);
    out.comparison = larger(out.comparison, compare(found, expected));
  }
  return out;
}

}  // namespace

std::optional<CheckResult> check_configuration(const CheckOptions& options) {
  const Prepared pipelined = prepare(options.config, options.models);
  return pipelined.schedule.steps > 1 ? check_window(options, pipelined) : check_step(options, pipelined);
}

}  // namespace penstock
