// SPDX-License-Identifier: Apache-2.0
// From a configuration to a run's programs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/chosen_layouts.h"
#include "config/config.h"
#include "lower/lower.h"
#include "lower/passes.h"
#include "penstock/compile.h"
#include "penstock/layout.h"
#include "penstock/plan_file.h"
#include "penstock/program.h"
#include "penstock/schedule.h"
#include "penstock/step.h"
#include "penstock/trace.h"
#include "stage/stages.h"

namespace penstock {

// A model with everything that follows from the configuration except the programs.
struct Prepared {
  std::unique_ptr<Model> model;
  Schedule schedule;                             // for a training step
  int microbatches = 1;                          // in the schedule
  std::vector<std::int64_t> slice_lengths = {};  // of schedule.slices; none: they are equal
  CompileOptions options;                        // all that decide its programs, but for the blocks of those beside the training's
  std::vector<ChosenLayouts> choices;            // what was found where Penstock chose what is split along them
  // Whether one device does the work of all members of the axes of the model's own collectives.
  bool of_all_members = false;
  std::vector<ParameterSpec> parameters;
  // A plan whose stages replace the model's own; the schedule then names its stages by their numbers in it.
  std::optional<PlanFile> plan;
  // How many of the table's micro-batches are one of the step's, and where stages take several together but run them one after the other,
  // why (lower/sizes.h).
  int together = 1;
  std::string one_by_one;
};

// Throws Error: a value that the model or the schedule refuses, a file that cannot be read, a plan of another model.
Prepared prepare(const Config& config, const ModelRegistry& models);
// The same with another table, on one device for each actor, or with another plan, whatever the configuration says of them.
Prepared prepare(const Config& config, Schedule schedule, std::int64_t microbatches, const ModelRegistry& models);
Prepared prepare(const Config& config, PlanFile plan, const ModelRegistry& models);
// Replaces each actor's one device by pipeline.data hosts of pipeline.local devices, which hold in shares what pipeline.zero says, and sets
// the axes over which the tensors of each are split, which maybe have to be chosen. Throws Error as axes_of and choose_along.
void spread_actors(const Config& config, Prepared& prepared);
// Finds whether stages can take at once what the table has them take together; of spread_actors, and of who changes the table behind it.
void choose_sizes(const Config& config, Prepared& prepared);
// The same on one device with the whole batch as one micro-batch: the reference that everything is compared with. A model whose
// equal_batches() is true runs as many micro-batches as it was pipelined with, one after the other. The device does what all members of the
// axes of the model's own collectives do.
Prepared prepare_sequential(const Config& config, const ModelRegistry& models, std::int64_t microbatches = 1);

// Returns the number of devices of each actor: those that share its micro-batches, each times the members of the axes.
std::vector<int> devices_of_actors(const Prepared& prepared);

// The number of micro-batches into which the whole step is cut: each of the table's in as many shares as let every actor's devices share
// it.
int step_microbatches(const Prepared& prepared);

// The model's data ports. Throws Error where it reads text and the configuration has no context.
std::vector<DataPort> data_of(const Config& config, const Model& model);
std::int64_t context_of(const Config& config);  // tokens in a sequence
// Returns how the rows of padded batches hold the configuration's data: pairs as pairs where the model reads them.
TextRows rows_of(const Config& config, const Model& model);
std::int64_t vocabulary_of(const Config& config);  // the model's, or 256 (bytes) where it does not say

// Step graphs of penstock/step.h, with the plan's stages as marks where there is one. Throw Error where the plan names other nodes than the
// model's.
Graph training_graph(const Config& config, const Prepared& prepared);
Graph gradient_graph(const Config& config, const Prepared& prepared);
Graph evaluation_graph(const Config& config, const Prepared& prepared);
Graph generation_graph(const Config& config, const Prepared& prepared);

// Programs with memory plans, verified. All throw Error where model, schedule and batch do not fit.
Program compile_training(const Config& config, const Prepared& prepared);
Program compile_gradients(const Config& config, const Prepared& prepared);
// Forward only, on the actors of the training table.
Program compile_evaluation(const Config& config, const Prepared& prepared);
// One sequence on one device; `prepared` must be sequential.
Program compile_generation(const Config& config, const Prepared& prepared);
// A step of a picture's on one device; `prepared` must be sequential.
Program compile_picture_step(const Prepared& prepared);

// The configuration's words for what training_step() takes.
OptimiserOptions optimiser_of(const Config& config);

// Returns what lowering of the training program begins with: lower/passes.h shows what each pass makes of it.
Lowering training_lowering(const Config& config, const Prepared& prepared);

// Returns the layouts that are decided for a training step along each of the mesh's axes (lower/member_inputs.h).
std::vector<AxisDecision> training_layouts(const Config& config, const Prepared& prepared);

// The stage DAG of a training step as text: stages, tasks, and the bundles between them with their bytes.
std::string stages_text(const Config& config, const Prepared& prepared);

}  // namespace penstock
