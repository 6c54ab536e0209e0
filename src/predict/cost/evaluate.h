// SPDX-License-Identifier: Apache-2.0
// Evaluates a plan by its step under the table simulator.
#pragma once

#include <algorithm>
#include <vector>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "penstock/plan.h"
#include "penstock/timeline.h"

namespace penstock {

// Fills schedule, predicted_time and peak_bytes of a plan that check_plan accepts. A stage is an actor; its replicas share every
// micro-batch and sum their gradients once after their last backward; then it updates its parameters. The order is GraphPipe's (each stage
// as far ahead as the longest path to the end needs, or as the plan asks for), with fewer in flight where the devices' memory requires it.
// Swapped bytes go to the host's memory behind each forward and come back ahead of the backward (schedule/host_copies.h).
// Returns false where even the fewest that can run do not fit (peak_bytes then says what they need). Linear in micro-batches times stages.
bool evaluate(const PlanProblem& problem, Plan& plan);

// The step that evaluate() timed, in seconds; its rows are the stages.
Timeline timeline_of(const PlanProblem& problem, const Plan& plan);

// In order: the samples of a step; the micro-batch of a stage, also where the stage does not say; and the sizes that stages may take, which
// are those of the problem, else of the costs, ascending. Throws Error where none of them divides the step.
int step_samples(const PlanProblem& problem);
int batch_of(const PlanProblem& problem, const PlanStage& stage);
std::vector<int> allowed_batches(const PlanProblem& problem);
// The allowed sizes and, unless the problem says its own, the measured one, shared by the replicas or on each of them. Ascending.
std::vector<int> possible_batches(const PlanProblem& problem, int replicas);

// The figures of a stage that evaluate() computes with, for searches that look at many plans.
struct StageFigures {
  double forward = 0, backward = 0;           // seconds of one of its micro-batches
  double all_reduce = 0;                      // seconds, once a step
  double update = 0;                          // seconds, once a step, after the sum of gradients
  double live_bytes = 0, resident_bytes = 0;  // on each of its devices; live: for one of its micro-batches
  double swap_bytes = 0, copy = 0;            // of one of its micro-batches; copy: seconds of it to the host's memory, or back
  double memory = kInfinity;                  // of its smallest device
  int size = 1;                               // of its micro-batch, in units of the table's micro-batches
  int least = 1;                              // fewest in flight with which the plan can run, in the table's micro-batches
  int ahead = 1;                              // the number in flight
  int most = 1;                               // the most in flight that its memory holds

  double after_loop() const { return all_reduce + update; }  // seconds after its last backward
  double bytes(int in_flight) const {
    return resident_bytes + live_bytes * in_flight / size + swap_bytes * std::min(in_flight, kSwappedThere * size) / size;
  }
  bool swaps() const { return swap_bytes > 0 && ahead > kSwappedThere * size; }  // with fewer in flight all of it would be there anyway
};
struct StageLink {
  int from = 0, to = 0;
  double forward = 0, backward = 0;  // seconds for one of the table's micro-batches
  double latency = 0;
};
struct PlanFigures {
  int microbatches = 1;  // number in the table, whose micro-batches are as large as all stages' sizes allow
  std::vector<StageFigures> stages;
  std::vector<StageLink> links;  // sorted by (from, to)

  bool fit() const;
};
// The most forwards (micro-batches times stages) of a plan's table: with these, evaluating a plan takes some tenths of a second.
inline constexpr std::int64_t kMostPlanForwards = 1 << 20;
std::int64_t forwards_of(const PlanFigures& figures);
bool can_be_simulated(const PlanFigures& figures);
// The most stages that a plan may have with micro-batches of so many samples; at least 1.
int most_stages(const PlanProblem& problem, int samples);
PlanFigures figures_of(const PlanProblem& problem, const std::vector<PlanStage>& stages);
// The time of the step as evaluate() has it, but for rounding, and computed much faster. No stage swaps.
double step_seconds(const PlanFigures& figures);
// Whose numbers of micro-batches in flight count: those that the plan says, or any. Another plan of the same stages may ask for more or
// fewer.
enum class PlanOrder { own, any };
// A lower bound of the step: for each stage, its own work, what comes before its first forward and backward, and what comes after its last.
double step_bound(const PlanFigures& figures, PlanOrder order = PlanOrder::own);
// A lower bound for all plans, the largest of: all nodes' work on all devices, the longest path of one micro-batch, and the path to a node
// with all the node's work; each with the update that comes last.
double least_step_seconds(const PlanProblem& problem);

}  // namespace penstock
