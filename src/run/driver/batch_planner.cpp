// SPDX-License-Identifier: Apache-2.0
#include "driver/batch_planner.h"

#include <memory>

#include "base/text.h"
#include "driver/module_steps.h"
#include "penstock/error.h"

namespace penstock {
namespace {

template <class Steps>
PlanStep plan_with(const Config& config, const Prepared& prepared, const Dataset& data) {
  return
      [steps = std::make_shared<Steps>(config, prepared, data)](const std::vector<std::int64_t>& samples) { return steps->step(samples); };
}

}  // namespace

PlanStep batch_planner(const Config& config, const Prepared& prepared, const Dataset& data) {
  const BatchPlannerInfo& planner = find_batch_planner(config.batch.planner);
  check_choices(config);
  if (planner.batches == BatchesOf::alike) return {};
  if (planner.batches == BatchesOf::images) return plan_with<ModuleSteps>(config, prepared, data);
  if ((config.data.documents.empty() && config.data.pairs.empty()) || reads_images(data_of(config, *prepared.model)))
    throw Error(concat(planner_text(config), " cuts batches of sequences with lengths of their own"), {},
                "name them: --set data.documents=FOLDER, or --set data.pairs=FILE.jsonl; or leave out batch.planner");
  return plan_with<BatchSteps>(config, prepared, data);
}

Program gradient_program(const Config& config, const Prepared& prepared, const BatchStep& step) {
  return ShapePrograms(config, prepared, /*gradients=*/true).program(step.shapes, step.table).program;
}

}  // namespace penstock
