// SPDX-License-Identifier: Apache-2.0
// The stage DAG: a step graph cut into tasks (F, and B or I and W, per stage; R where it recomputes) and the bundles of values that flow
// between them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/schedule.h"
#include "penstock/task_graph.h"

namespace penstock {

// Sets Op::stage of every op of the loop body (`step.ops` has one accumulate): marks stay; stage_boundary marks are resolved and
// removed; an unmarked forward op takes the unique latest stage of its operands, else the earliest of its users; a backward op takes its
// forward op's (by sequence). Constants stay unmarked (they are cloned into each reader's task). Throws Error naming op, candidates and the
// mark that would settle it. Returns the step with stages assigned and their names in topological order.
struct StagedStep {
  Graph step;
  IdVector<StageId, std::string> stages;
  // Where the step is what a member of axes does, by result of the loop: a bit for each axis along which members have parts of different
  // sizes or, where there are several axes, parts at all; and one for gradients of casts, where parameters are gathered. Results of
  // different bits are in accumulators of their own, so that what members have alike lies at the same place on all.
  std::vector<std::uint32_t> apart = {};
};
StagedStep assign_stages(Graph step);

// An op without operands, which has no stage.
inline bool is_constant(const Op& op) {
  return op.operands.empty();
}

// The work of one kind that a stage does for a micro-batch, or a part of that work.
struct StageTask {
  StageId stage{};
  Kind kind = Kind::F;  // F, B, I, W or R
  TaskGraph graph;      // inputs: the parts of `reads` in order; outputs: the parts of `writes` in order
  std::vector<BundleId> reads;
  std::vector<BundleId> writes;  // edges and accumulators
  bool light = false;            // an F that leaves to R what only the stage's own backward reads
  std::int32_t part = 0;         // collectives part what a stage does of a kind into several tasks, which run in this order
  bool collective = false;       // it is one collective, of one tensor
  std::int32_t shape_class = 0;  // of the micro-batches that it works on (lower/classes.h)
};

// Values that have one producer and the same readers.
struct Bundle {
  enum class Source : std::uint8_t {
    data,         // split inputs of the loop: this micro-batch's part
    invariant,    // loop inputs that stay: parameters and what was computed before the loop
    edge,         // between tasks of one micro-batch
    accumulator,  // sums over the micro-batches (results of the loop)
  };
  Source source = Source::edge;
  std::vector<TensorType> types;
  // data, invariant: which operands of the loop; accumulator: which results of the loop; edge: values of the body (for messages).
  std::vector<std::int32_t> members;
  // None for data and invariant. Several for an accumulator whose terms lie in several stages. Where a stage recomputes, also the
  // task that makes the bundle in F's place: R what only the stage's own backward reads, the light F the rest.
  std::vector<StageTaskId> producers;
  std::vector<StageTaskId> readers;
  // An edge from a stage's forward to its own backward that OFFLOAD leaves on the device: other ops of the stage are marked (kOffload), and
  // none of these makes it.
  bool stays = false;
  // An edge to which each of its producers adds, in the order in which they run: what an add_n that is `in_place` sums of other tasks. They
  // and the reader run on one actor.
  bool sums = false;
};

struct StageDag {
  IdVector<StageId, std::string> names;  // topologically ordered
  IdVector<StageTaskId, StageTask> tasks;
  IdVector<BundleId, Bundle> bundles;
  StageShape shape;  // for validating schedules

  // In the order in which they run; none where the stage has no such task (no backward; an empty I; nothing to recompute). F: the whole
  // one, unless `light`.
  std::vector<StageTaskId> tasks_of(StageId stage, Kind kind, bool light = false, std::int32_t shape_class = 0) const;
  // The first of them, or none.
  StageTaskId task(StageId stage, Kind kind, bool light = false) const;
};

// `split_backward[s]`: whether stage s has I and W instead of B. `recomputed[s]` (none: no stage): whether it also has a light F and an R,
// as far as its backward reads anything that nobody else does. Accepts a step as assign_stages returns it.
struct CutOptions {
  bool sums_in_w = false;  // W also adds what I makes of the loop's sums to them: a stage has one accumulator, complete behind its last W
  // Parameters are not always there: W reads none (what reads them belongs to I, whoever needs it), and what is made of them alone is made
  // anew by each task that reads it.
  bool gathered = false;
  int slices = 1;                      // so many stages, one after the other, are slices of one, and run on one actor
  std::vector<StagePart> blocks = {};  // of slices' attention that are stages of their own (penstock/schedule.h)
};
StageDag cut(const StagedStep& step, const std::vector<bool>& split_backward, const std::vector<bool>& recomputed = {},
             const CutOptions& options = {});

// Stages, what flows between their tasks, and the tasks' graphs, as text.
std::string print(const StageDag& dag);

}  // namespace penstock
