// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_planners.h"

#include "base/papers.h"
#include "base/text.h"
#include "batch/infinipipe.h"
#include "batch/terapipe.h"
#include "penstock/error.h"

namespace penstock {

const std::vector<BatchPlannerInfo>& batch_planners() {
  static const std::vector<BatchPlannerInfo> all = {
      {"pad", "equal micro-batches of samples as long as the context, and one program for all batches"},
      {.name = "dynapipe",
       .summary = "padded micro-batches of neighbouring lengths, with an order and a table for each batch (DynaPipe, 2311.10418)",
       .batches = BatchesOf::sequences,
       .recomputes = Recomputes::modes,
       .plan = [](const BatchQuestion& of) { return dynapipe_batch(of.batch); }},
      {.name = "balanced",
       .summary = "ragged rows of nearly equal times, as many as pipeline.microbatches says, in the configured table",
       .batches = BatchesOf::sequences,
       .rows = BatchRows::ragged,
       .given_table = true,
       .plan = [](const BatchQuestion& of) { return balanced_batch(of.batch, of.table); }},
      {.name = "searched",
       .summary = "micro-batches, their order and a table that are searched together",
       .batches = BatchesOf::sequences,
       .rows = BatchRows::either,
       .recomputes = Recomputes::actions,
       .plan = [](const BatchQuestion& of) { return search_batch(of.batch); }},
      {.name = "infinipipe",
       .summary = "long texts in slices, short ones packed, in one table (InfiniPipe, 2509.21275)",
       .batches = BatchesOf::sequences,
       .rows = BatchRows::ragged,
       .texts = TextsIn::slices,
       .recomputes = Recomputes::either,
       .plan = [](const BatchQuestion& of) { return infinipipe_batch(of.batch, {.context = of.context, .slices = of.slices}); }},
      {.name = "terapipe",
       .summary = "padded texts in groups, each cut into slices of its own (TeraPipe, 2102.07988)",
       .batches = BatchesOf::sequences,
       .texts = TextsIn::slices,
       .plan = [](const BatchQuestion& of) { return terapipe_batch(of.batch, of.slices); }},
      {.name = "flexsp",
       .summary = "texts over groups of an actor's devices, large groups for long ones (FlexSP, 2412.01523)",
       .batches = BatchesOf::sequences,
       .rows = BatchRows::ragged,
       .texts = TextsIn::groups,
       .plan = [](const BatchQuestion& of) { return flexsp_batch(of.batch, of.groups); }},
      {.name = "dip",
       .summary = "texts with images, these in parts, and a table over encoder and text for each batch (DIP, 2504.14145)",
       .batches = BatchesOf::images,
       .recomputes = Recomputes::layers,
       .plan_modules = search_modules},
      {.name = "shapes",
       .summary = "texts with images without padding, those of a micro-batch in one part, in the configured table",
       .batches = BatchesOf::images,
       .given_table = true},
  };
  return all;
}

const BatchPlannerInfo& find_batch_planner(std::string_view name) {
  std::vector<std::string> names;
  for (const BatchPlannerInfo& row : batch_planners()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  const std::string near = hint_for(name, names);
  throw Error(concat("there is no batch planner ", quote(name)), {}, near.empty() ? "known: " + join(names, ", ") : near);
}

}  // namespace penstock
