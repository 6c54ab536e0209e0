// The training loop.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cluster.h"
#include "runtime/compile.h"
#include "runtime/config.h"
#include "runtime/dataset.h"
#include "runtime/metrics.h"

namespace penstock {

struct TrainingPrograms {
  Program training;
  std::optional<Program> evaluation;  // where there is validation data
};
TrainingPrograms compile_programs(const Config& config, const Prepared& prepared);

// Where a run begins.
struct TrainingStart {
  StateSource state;
  std::int64_t step = 0;      // steps done
  std::int64_t position = 0;  // training samples read
};
TrainingStart fresh_start(const Config& config, const Prepared& prepared);
// From a file of parameters. Throws Error naming file and tensors: missing, of another shape, unknown to the model (the masks
// "*.attn.bias" of published GPT-2 files, and a head that is tied, are no parameters).
TrainingStart start_from_parameters(const Config& config, const Prepared& prepared, const std::string& file);
// From a checkpoint or run folder. Throws Error if the checkpoint is damaged, of another model, or already past config's steps.
TrainingStart start_from_checkpoint(const Config& config, const std::string& path, const ModelRegistry& models);

// Throws Error unless a run may begin at `start`: the model has a token for every byte, and nothing in config.run.out would be
// overwritten.
void check_run(const Config& config, const TrainingStart& start);

struct TrainingHooks {
  std::function<void(const StepMetrics&)> step;  // after each
  std::function<bool()> stop;                    // asked after each: finish early, with a checkpoint
};

struct TrainingResult {
  StepMetrics last;
  std::optional<double> validation_loss;  // the last one measured
  bool stopped = false;                   // early
  std::string checkpoint;                 // the last one's folder
  std::int64_t steps = 0;                 // done here
  double seconds = 0;                     // in training steps
  std::vector<DeviceReport> devices;      // sums of busy and waiting; peaks; no spans
  StepResult recorded;                    // a usual training step, with its spans: of the first warm ones that of median time
  std::int64_t recorded_step = 0;
};

// Writes metrics.jsonl and checkpoints under config.run.out. Throws Error on a loss or gradient that is not finite (the last
// checkpoint stays) and what the cluster throws.
TrainingResult train(const Config& config, const TrainingPrograms& programs, const TrainingStart& start, Cluster& cluster,
                     const Dataset& data, const TrainingHooks& hooks);

}  // namespace penstock
