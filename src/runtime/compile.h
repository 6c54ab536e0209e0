// From a configuration to the programs of a run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lower/lower.h"
#include "penstock/schedule.h"
#include "penstock/trace.h"
#include "plan/plan_file.h"
#include "program/program.h"
#include "runtime/config.h"
#include "stage/stages.h"

namespace penstock {

// A model with everything that follows from the configuration but the programs.
struct Prepared {
  std::unique_ptr<Model> model;
  Schedule schedule;          // of a training step
  int microbatches = 1;       // of the table
  std::vector<int> replicas;  // devices of each actor, which share every micro-batch
  int zero = 0, local = 1;    // what these hold in shares: Sharding's level and local
  std::vector<ParameterSpec> parameters;
  std::optional<PlanFile> plan;  // stages instead of the model's own; the schedule is of its stages, by their numbers in it
};

// Throws Error: what the model or the schedule refuses, a file that cannot be read, a plan of another model.
Prepared prepare(const Config& config, const ModelRegistry& models);
// The same under another table, on one device for each actor, or another plan, whatever the configuration says of them.
Prepared prepare(const Config& config, Schedule schedule, std::int64_t microbatches, const ModelRegistry& models);
Prepared prepare(const Config& config, PlanFile plan, const ModelRegistry& models);
// Gives each actor of `prepared` pipeline.data nodes of pipeline.local devices for one, which hold in shares what pipeline.zero says.
void spread_actors(const Config& config, Prepared& prepared);
// The same on one device with the whole batch as one micro-batch: what everything is compared with. A model whose equal_batches() is
// true is compared with as many micro-batches as it was pipelined with, one after the other.
Prepared prepare_sequential(const Config& config, const ModelRegistry& models, std::int64_t microbatches = 1);

// Into how many micro-batches the whole step is cut: the table's, each in as many parts as let every actor's devices share it.
int step_microbatches(const Prepared& prepared);

// The model's data ports. Throws Error where it reads text and the configuration has no context.
std::vector<DataPort> data_of(const Config& config, const Model& model);
std::int64_t context_of(const Config& config);     // tokens of one sequence
std::int64_t vocabulary_of(const Config& config);  // 256, bytes, for a model that does not say

// Step graphs of trace/step.h, with the plan's stages as marks where there is one. Throw Error where it names other nodes than the model's.
Graph training_graph(const Config& config, const Prepared& prepared);
Graph gradient_graph(const Config& config, const Prepared& prepared);
Graph evaluation_graph(const Config& config, const Prepared& prepared);
Graph generation_graph(const Config& config, const Prepared& prepared);

// Planned and verified. All throw Error where model, schedule and batch do not fit.
Program compile_training(const Config& config, const Prepared& prepared);
Program compile_gradients(const Config& config, const Prepared& prepared);
// On the actors of the training table, forward only.
Program compile_evaluation(const Config& config, const Prepared& prepared);
// One sequence on one device: `prepared` is sequential.
Program compile_generation(const Config& config, const Prepared& prepared);

// The stage DAG of a training step as text: stages, tasks, and the bundles between them with their bytes.
std::string stages_text(const Config& config, const Prepared& prepared);

}  // namespace penstock
