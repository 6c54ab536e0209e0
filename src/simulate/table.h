// When each action of a table runs, on devices and links that are described by numbers: actors compute one action after the other, a
// transfer occupies its link, what is needed elsewhere arrives later.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schedule/kinds.h"
#include "schedule/work.h"
#include "simulate/network.h"
#include "simulate/simulate.h"
#include "simulate/timeline.h"

namespace penstock {

// Of one stage and one micro-batch.
struct StageCosts {
  std::array<double, kKindCount> time{};  // by Kind, in any unit; kinds that are not named cost nothing
  double forward_bytes = 0;               // of its output
  double backward_bytes = 0;              // of the gradient of its output, from each stage that it feeds
  double weight_bytes = 0;                // what W needs of I where they are on two actors
  double live = 1;                        // what its activations count
};
struct TableCosts {
  std::vector<StageCosts> stages;
};

struct UnitCosts {
  double forward = 1, backward = 2, input = 1, weight = 1;
  double bytes = 0;  // of every transfer
};
// Every stage costs `share` of these times, and its activations count `share`. Bytes are whole.
TableCosts uniform_costs(std::int32_t stages, const UnitCosts& costs = {}, double share = 1);

struct TableOptions {
  // latency, bandwidth and medium of a link; what starting or copying costs the ends is not counted.
  Network network{};
  // Each action's luck is a hash of the seed, its stage, kind and micro-batch: two tables of the same work meet the same.
  Disturbance disturbance{};
  // A fused pair is one piece of work: it begins when all that both need is there, and both have ended only when it has. Otherwise one runs
  // after the other. Throws Error where pairs of two actors would wait for each other.
  bool atomic_pairs = false;
  bool record = false;  // fill transfers and order
};

// From when its link took it until it had arrived. One for each action and actor that needs something of it.
struct TableTransfer {
  Position from;
  std::int32_t to = -1;
  double begin = 0, end = 0;
  double bytes = 0;
  std::int64_t behind = -1;  // the transfer whose leaving the link let this one begin; -1: the action's end did
};

struct TableTime {
  std::vector<std::vector<double>> start, end;  // of each action
  double makespan = 0;
  std::vector<double> busy;  // of each actor
  // Of each actor: most activations that lived at once (StageCosts::live), and when first. A micro-batch's live from the start of its F to
  // the end of its B, or of its W where they are split, wherever that is; those of a stage without backward do not live on.
  std::vector<double> peak_live, peak_time;
  std::vector<Position> order;           // if recorded: all actions, each after all that it needs
  std::vector<TableTransfer> transfers;  // if recorded: in `order` of their actions

  // 1 - busy / (actors * makespan).
  double bubble() const;
};

// Of a valid table and costs of all its stages, which are finite and not negative. Linear in actions and edges; where links share a medium,
// times the logarithm of the number of actors. Transfers leave on a link, or a medium, in the order in which they are ready.
TableTime time_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options = {});
TableTime time_table(const WorkIndex& work, const TableCosts& costs, const TableOptions& options = {});

// No table that places this work as this one can be faster: the longest way through what actions need of each other, with transfers but as
// if every actor could run any number of actions at once and no link were ever occupied.
double dependency_bound(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options = {});

// `time`: of this table, recorded. In the costs' own unit; memory is in activations.
Timeline timeline_of(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableTime& time);

}  // namespace penstock
