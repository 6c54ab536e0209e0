#include "driver/batch_steps.h"

#include <algorithm>

#include "base/text.h"
#include "batch/plan_batch.h"
#include "penstock/error.h"

namespace penstock {
namespace {

BatchProblem problem_of(const Config& config, const Dataset& data, const std::vector<std::int64_t>& samples) {
  const Config::Batch& batch = config.batch;
  std::vector<SampleLengths> lengths;
  for (const std::int64_t sample : samples) lengths.push_back({data.length(sample), 0});
  BatchProblem out;
  out.samples = padded(std::move(lengths), false, batch.round);
  for (SampleLengths& sample : out.samples) sample.input = std::min(sample.input, data.tokens());
  out.order = longest_first(out.samples);
  out.modes = {{"none", formula_costs({.fixed = batch.fixed, .linear = batch.linear, .quadratic = batch.quadratic})}};
  out.cut.stages = config.pipeline.actors;
  if (batch.memory > 0) out.available = batch.memory;
  out.seed = static_cast<std::uint64_t>(config.train.seed);
  return out;
}

}  // namespace

BatchSteps::BatchSteps(const Config& config, const Prepared& prepared, const Dataset& data)
    : config_(config), data_(data), programs_(config, prepared) {
  if (prepared.schedule.stages() != config.pipeline.actors)
    throw Error(concat("batch.planner = ", quote(config.batch.planner), " plans one stage for each actor; schedule ",
                       prepared.schedule.name, " has ", prepared.schedule.stages(), " for ", config.pipeline.actors),
                {}, "set pipeline.chunks = 1 and a schedule of one chunk: the order of each batch is planned anyway");
}

BatchStep BatchSteps::step(const std::vector<std::int64_t>& samples) {
  const BatchProblem problem = problem_of(config_, data_, samples);
  const BatchPlan plan = plan_batch(problem);
  const ReplicaPlan& replica = plan.replicas.at(0);
  const BatchCut& cut = plan.fitted.cut;
  BatchStep out;
  std::vector<BatchShape> shapes;
  for (const std::size_t m : replica.micro_batches) {
    const std::size_t end = m + 1 < cut.begins.size() ? cut.begins[m + 1] : samples.size();
    for (std::size_t at = cut.begins[m]; at < end; ++at) out.samples.push_back(samples[problem.order[at]]);
    shapes.push_back(cut.shapes[m]);
  }
  out.program = std::make_shared<const Program>(programs_.training(shapes, replica.schedule));
  return out;
}

}  // namespace penstock
