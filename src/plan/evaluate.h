// What a plan comes to: its step under the table simulator.
#pragma once

#include <vector>

#include "base/numbers.h"
#include "penstock/plan.h"
#include "simulate/timeline.h"

namespace penstock {

// Fills schedule, predicted_time and peak_bytes of a plan that check_plan accepts. A stage is an actor; its replicas share every
// micro-batch and sum their gradients once after their last backward; then it updates its parameters. The order is GraphPipe's (each stage
// as far ahead as the longest way to the end needs, or as the plan asks for), with as many fewer in flight as the devices' memory asks for.
// False: the fewest that can run do not fit either (peak_bytes says what they need). Linear in micro-batches times stages.
bool evaluate(const PlanProblem& problem, Plan& plan);

// The step that evaluate() timed, in seconds; its rows are the stages.
Timeline timeline_of(const PlanProblem& problem, const Plan& plan);

// Samples of a step, of a stage's micro-batch where it does not say, and the sizes that stages may take: those of the problem, else of the
// costs, ascending. Throws Error where none of them divides the step.
int step_samples(const PlanProblem& problem);
int batch_of(const PlanProblem& problem, const PlanStage& stage);
std::vector<int> allowed_batches(const PlanProblem& problem);
// The allowed sizes and those of planners that do not choose: the measured size, shared by the replicas or on each of them. Ascending.
std::vector<int> possible_batches(const PlanProblem& problem, int replicas);

// What evaluate() counts with, for searches that look at many plans.
struct StageFigures {
  double forward = 0, backward = 0;           // seconds of one of its micro-batches
  double all_reduce = 0;                      // seconds, once in a step
  double update = 0;                          // seconds, once in a step, after the sum of gradients
  double live_bytes = 0, resident_bytes = 0;  // on each of its devices; live: of one of its micro-batches
  double memory = kInfinity;                  // of the smallest of its devices
  int size = 1;                               // of its micro-batch, in the table's micro-batches
  int least = 1;                              // in flight, in the table's micro-batches: fewer cannot run
  int ahead = 1;                              // as many are
  int most = 1;                               // as many may be: its memory holds them

  double after_loop() const { return all_reduce + update; }  // seconds, behind its last backward
  double bytes(int in_flight) const { return resident_bytes + live_bytes * in_flight / size; }
};
struct StageLink {
  int from = 0, to = 0;
  double forward = 0, backward = 0;  // seconds of one of the table's micro-batches
  double latency = 0;
};
struct PlanFigures {
  int microbatches = 1;  // of the table: as large as all stages' sizes allow
  std::vector<StageFigures> stages;
  std::vector<StageLink> links;  // by (from, to)

  bool fit() const;
};
// Forwards in a plan's table: micro-batches times stages. With at most so many, evaluating a plan takes some tenths of a second.
inline constexpr std::int64_t kMostPlanForwards = 1 << 20;
std::int64_t forwards_of(const PlanFigures& figures);
bool can_be_simulated(const PlanFigures& figures);
// The most stages that a plan may have in micro-batches of so many samples; at least 1.
int most_stages(const PlanProblem& problem, int samples);
PlanFigures figures_of(const PlanProblem& problem, const std::vector<PlanStage>& stages);
// The step of evaluate(), as its table would have it but for rounding, and much faster.
double step_seconds(const PlanFigures& figures);
// Where a plan says how many of its stages' micro-batches are in flight, others may ask for more or fewer of the same stages.
enum class PlanOrder { own, any };
// It takes no less: of each stage, what comes before its first forward and backward and after its last.
double step_bound(const PlanFigures& figures, PlanOrder order = PlanOrder::own);
// No plan at all takes less: all nodes' work on all devices, the longest way of one micro-batch, or that to a node and all its work; each
// with the update that comes last.
double least_step_seconds(const PlanProblem& problem);

}  // namespace penstock
