// SPDX-License-Identifier: Apache-2.0
// Runs whose samples have lengths of their own: each batch gets its own micro-batches, order and program.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch/batch_planners.h"
#include "batch/measured_costs.h"
#include "config/shape_programs.h"
#include "data/dataset.h"
#include "lower/stage_bytes.h"
#include "penstock/program.h"

namespace penstock {

// A batch as it is run.
struct BatchStep {
  std::vector<std::int64_t> samples;      // in the order of the program's rows
  std::vector<std::int64_t> begins = {};  // StepInput::begins
  std::shared_ptr<const Program> program = {};
  std::vector<BatchShape> shapes = {};  // of its micro-batches, and the table of these: what the program is made of
  Schedule table = {};
  std::int64_t classes = 0, new_classes = 0;  // of its micro-batches (config/shape_programs.h)
  double predicted = 0;                       // seconds that the step should take; 0: nothing is predicted
  PlannedBatch plan = {};                     // its samples are numbers of teams (below)
  TableCosts costs = {};                      // by which it was planned, in seconds
  Network network = {};                       // likewise
};

// Makes the program of the step's shapes and table, and sets it and the counts of its classes.
void set_program(ShapePrograms& programs, BatchStep& step);

// The configured planner, for messages.
std::string planner_text(const Config& config);

// Times of batches are measured under these settings, and are right for them (BatchFit::under).
std::string measured_under(const Config& config);
// Whether tables of batches may have R.
bool plans_recomputation(const Config& config);
// Whether shapes of batches may say that some layers are computed again (BatchShape::again).
bool plans_layers(const Config& config);

// The word for what the batch's backwards compute again; "" where its planner does not choose it.
std::string recompute_of(const Config& config, const PlannedBatch& plan);
// Layers of stages that backwards compute again, over all micro-batches and slices.
std::int64_t layers_again(const BatchStep& step);

// The bytes of the device that plans most.
double most_bytes(const Program& program);
// The error of a batch for which there is no program below batch.memory_limit.
[[noreturn]] void fail_above_limit(const Config& config, std::size_t samples, double bytes);

// Throws Error where rows are to hold several samples and the planner pads them, or more may be computed again than it knows how.
void check_choices(const Config& config);
// Throws Error where the configuration's stages are a plan's, or slices of the model's, as batches are planned for the model's own; and
// where ZeRO's shares would depend on a batch.
void check_own_stages(const Config& config, const Prepared& prepared);

// Plans batches of sequences as [batch] of the configuration says (batch/batch_planners.h). Where the devices of an actor
// share every micro-batch, what is planned are teams: as many samples of nearly one length as there are devices, each of which takes one.
// So all shares of a micro-batch have one shape. All calls come from one thread, whichever it is.
class BatchSteps {
 public:
  // All must outlive it. Throws Error where there are more stages than actors, or a limit of memory, which the planner does not have, or
  // slices of a model or a mesh that it cannot cut, or the file of costs lacks these stages or this backend.
  BatchSteps(const Config& config, const Prepared& prepared, const Dataset& data);
  // Throws Error where a sample fits into no micro-batch, or the batch into no program below the memory limit, and as compile() does.
  BatchStep step(const std::vector<std::int64_t>& given);
  // A batch's samples in the order in which lowered() takes them. Throws Error where they do not divide into teams.
  std::vector<std::int64_t> in_teams(std::vector<std::int64_t> samples) const;
  // A plan of such samples as a program.
  BatchStep lowered(const std::vector<std::int64_t>& samples, PlannedBatch plan);

 private:
  bool is_ragged() const { return planner_.rows == BatchRows::ragged || (planner_.rows == BatchRows::either && config_.batch.ragged); }
  std::int64_t round() const;  // to multiples of which lengths are rounded up
  SampleLengths lengths_of(std::int64_t sample) const;
  void check_planner() const;
  void check_texts() const;  // of a planner that has them in several pieces
  void check_groups() const;
  FlexspOptions group_options();
  PlannedBatch plan(const std::vector<std::int64_t>& samples, double limit) const;
  void read_costs();
  int least_layers();  // of a stage; 0: none may be computed again
  // Where backwards compute so many layers of each stage again.
  std::vector<StageBytes> first_slice_bytes(const BatchLoad& slice, int layers = 0);
  std::vector<HeldFit> held_fits(Recompute mode);
  // How much of each stage's forward its backward computes again, as a share of its time.
  std::vector<double> computed_again(BatchShape shape);
  std::vector<Recompute> modes() const;  // that a plan may choose from

  const Config& config_;
  const BatchPlannerInfo& planner_;
  const Prepared& prepared_;
  const Dataset& data_;
  bool reads_pairs_;  // whether the model reads each sample as an input and a target
  ShapePrograms programs_;
  StageCostsOf costs_;  // in seconds
  Network network_;     // between actors
  FlexspOptions groups_;
  int layers_ = 0;            // of each stage that backwards may compute again one by one
  double beyond_ = -1;        // seconds of a step beyond its table; -1: not known, so that nothing is predicted
  double limit_ = kInfinity;  // of what lives on an actor, in the costs' unit
};

}  // namespace penstock
