// SPDX-License-Identifier: Apache-2.0
// The training loop.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/compile.h"
#include "config/config.h"
#include "data/dataset.h"
#include "devices/cluster.h"
#include "driver/batch_planner.h"
#include "driver/metrics.h"
#include "driver/pace.h"
#include "state/checkpoint.h"

namespace penstock {

struct TrainingPrograms {
  Program training;                   // with `of_batch` that of the first batch
  std::optional<Program> evaluation;  // present where there is validation data
  std::int64_t steps = 1;             // that the training program does at once, one batch each (Schedule::steps)
  // Where each batch has a program of its own: of a batch's samples. While the run goes on, a thread of its own calls it.
  PlanStep of_batch = {};
  // Where the devices may change: how the run is laid out on them, in a phrase, and the seconds that a step is predicted to take; 0: not
  // known.
  std::string layout = {};
  double predicted = 0;
};
// `position`: training samples read, behind which the first batch is. Throws Error as batch_planner() and compile_training() do.
TrainingPrograms training_programs(const Config& config, const Prepared& prepared, const Dataset& data, std::int64_t position);

// The state and position at which a run begins.
struct TrainingStart {
  StateSource state = {};
  bool init = false;          // whether the user named the file that it has parameters of
  std::int64_t step = 0;      // steps done
  std::int64_t position = 0;  // training samples read
  // For a resumed run: how it trained before, what it read (Dataset::fingerprint), and the steps of newer checkpoints that cannot be used.
  std::optional<Config::Train> before = {};
  std::uint64_t text = 0;
  std::set<std::int64_t> damaged = {};
};
// Starts from the values that the model's own file has (Model::initial_values), else from drawn ones. Throws Error naming file and tensors
// where that has not all.
TrainingStart fresh_start(const Config& config, const Prepared& prepared);
// Starts from the parameters in a file or a folder that another program saved (state/weight_files.h), in a checkpoint or in a run's newest
// intact one; adapters that are not there begin as drawn. Throws
// Error naming file and tensors: missing, of another shape, not finite, unknown to the model (the masks "*.attn.bias" of published GPT-2
// files, and a head that is tied, are ignored).
TrainingStart start_from_parameters(const Config& config, const Prepared& prepared, const std::string& path, const ModelRegistry& models);
// Starts from a checkpoint, or the newest intact one of a run folder. Throws Error if there is none, or it is of another model.
TrainingStart start_from_checkpoint(const Config& config, const std::string& path, const ModelRegistry& models);

// Whether the run continues in the folder that its checkpoint is in.
bool goes_on_in_place(const Config& config, const TrainingStart& start);
// Throws Error unless a run may begin at `start`: there are steps left, and nothing in config.run.out would be overwritten.
void check_run(const Config& config, const TrainingStart& start);

struct TrainingHooks {
  std::function<void()> begin;                         // called before the first step: from here on the run must not be cut off
  std::function<void(const StepMetrics&)> step;        // called after each step
  std::function<bool()> stop;                          // asked after each step and while validating; true: finish early, with a checkpoint
  std::function<void(const std::string&)> event = {};  // called with a line for each change of an elastic run's devices
  // An elastic run's programs on so many devices, of which they may leave some idle: those that are predicted to be fastest. Throws Error
  // where there are none.
  std::function<TrainingPrograms(int devices, const Pace& pace)> programs_on = {};
};

// A run: what it trains, and on what.
struct TrainingRun {
  const Config& config;
  const TrainingPrograms& programs;
  const TrainingStart& start;
  Cluster& cluster;
  const Dataset& data;
  TrainingHooks hooks;
};

// A step whose batch had a program of its own.
struct RecordedBatch {
  std::int64_t step = 0;
  BatchStep batch;
  StepResult result;  // with spans
};

struct TrainingResult {
  StepMetrics last;
  std::optional<double> validation_loss;  // the last one measured
  bool stopped = false;                   // whether it ended early
  std::string checkpoint;                 // folder of the last one written
  std::int64_t steps = 0;                 // steps done by this call
  double seconds = 0;                     // spent in training steps
  std::vector<DeviceReport> devices;      // sums of busy and waiting time; peaks; no spans
  std::vector<RecordedBatch> batches;     // where each has a program of its own, some consecutive ones in place of:
  StepResult recorded;                    // a typical training step with its spans: of the first warm steps the one of median time
  std::int64_t recorded_step = 0;
  std::optional<Program> replaced = {};  // the program whose step it is, where the devices have changed
};

// Writes config.toml, metrics.jsonl and checkpoints under config.run.out. Throws Error on a loss or gradient that is not finite or a
// checkpoint that cannot be written (the ones before stay), and what the cluster throws.
TrainingResult train(const TrainingRun& run);

}  // namespace penstock
