// SPDX-License-Identifier: Apache-2.0
// When each action of a table runs, on devices and links that are described by numbers: actors compute one action after the other, a
// transfer occupies its link, what is needed elsewhere arrives later. Beside compute an actor has two lanes: of copies to and from host
// memory (OFFLOAD, RELOAD), and of collectives (UNSHARD, REDUCE_GRAD). What stands in the row for a lane is started when the compute before
// it in the row has ended, and runs in the order of the row. B and I wait for their RELOAD, all else of a stage for the UNSHARD before it,
// U for REDUCE_GRAD. Transfers start when what they carry is there or, where the table has sends and receives, when both its ends have come
// to theirs; these take an actor no time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/network.h"
#include "penstock/schedule.h"
#include "penstock/timeline.h"

namespace penstock {

// The costs of one stage and one micro-batch.
struct StageCosts {
  // By Kind, in any unit (of UNSHARD and REDUCE_GRAD: once, for all slices at slice 0); kinds that are not named cost nothing.
  std::array<double, static_cast<std::size_t>(Kind::RECV_B) + 1> time{};
  double forward_bytes = 0;   // of its output
  double backward_bytes = 0;  // of the gradient of its output, from each stage that it feeds
  double weight_bytes = 0;    // what W needs of I where they are on two actors
  double gradient_bytes = 0;  // what U needs of a step's last W where they are on two actors
  double live = 1;            // what its activations count
  double kept = 0;            // of these, what F keeps where R follows, and what stays where they are offloaded
  double parameters = 0;      // what its parameters count where an actor has them unsharded, in live's unit, for all slices at slice 0
  double gradients = 0;       // what the sum of its gradients counts until REDUCE_GRAD has left the actor's share of it, likewise

  // The time of an action of this kind.
  double& of(Kind kind) { return time[static_cast<std::size_t>(kind)]; }
  double of(Kind kind) const { return time[static_cast<std::size_t>(kind)]; }
};
// Micro-batches of one class cost alike. Where there are several classes, the costs of all stages stand there once for each.
struct TableCosts {
  std::vector<StageCosts> stages;     // by stage, class after class
  std::vector<std::int32_t> first{};  // by micro-batch: where the stages of its class begin; empty: all are of one class

  // -1 stands for no micro-batch and has the first class's costs.
  std::size_t row(std::int32_t stage, std::int32_t microbatch) const {
    const std::int32_t begin = first.empty() || microbatch < 0 ? 0 : first[static_cast<std::size_t>(microbatch)];
    return static_cast<std::size_t>(begin + stage);
  }
  const StageCosts& of(std::int32_t stage, std::int32_t microbatch) const { return stages[row(stage, microbatch)]; }
};

// Costs that are the same for every stage, in any unit of time.
struct UnitCosts {
  double forward = 1, backward = 2, input = 1, weight = 1;  // times of F, B, I and W
  double bytes = 0;                                         // of every transfer; 0: it takes its latency alone
  std::optional<double> recompute{};                        // forward's, unless said
  double offload = 0;                                       // of a copy to host memory, or back
  double gather = 0, reduce = 0;                            // of UNSHARD, of REDUCE_GRAD
  double kept = 0, parameters = 0;                          // StageCosts'
};
// Every stage costs `share` of these times, and its activations and parameters count `share`. Bytes are whole.
TableCosts uniform_costs(std::int32_t stages, const UnitCosts& costs = {}, double share = 1);
// Every stage of the table costs these, but that those with a forward alone take as much of it as the table says.
TableCosts uniform_costs(const Schedule& schedule);

// Luck that a simulated machine has with its runs.
struct Disturbance {
  double jitter = 0;                  // each run takes 1 - jitter to 1 + jitter of its time, evenly
  std::uint64_t seed = 0;             // of the jitter
  std::vector<double> slowdown = {};  // of each device's runs; empty: none
};

// The circumstances in which a table is timed.
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

// An action's place in a table.
struct Position {
  std::int32_t actor = -1;  // -1: nowhere
  std::int32_t index = -1;  // in the actor's row

  explicit operator bool() const { return actor >= 0; }  // whether it is in the table
  bool operator==(const Position&) const = default;
};

// From when its link took it until it had arrived. One for each action and actor that needs something of it.
struct TableTransfer {
  Position from;              // the action that made what it carries
  Position by;                // what let it start: this action or, of its send and its receive, the later one
  std::int32_t to = -1;       // the actor that needs it
  double begin = 0, end = 0;  // in the costs' unit
  double bytes = 0;           // moved; 0: nothing is
  std::int64_t behind = -1;   // the transfer whose leaving the link let this one begin; -1: the action's end did
};

// When each action of a table runs, in the costs' unit of time.
struct TableTime {
  std::vector<std::vector<double>> start, end;  // of each action
  double makespan = 0;                          // end of the last action
  std::vector<double> busy;                     // of each actor: of its compute
  // By actor: most activations that lived at once (StageCosts::live), and when first. A micro-batch's live from the start of its F to
  // the end of its B, or of its W where they are split, wherever that is; those of a stage without backward do not live on. All but `kept`
  // of them only live from the start of R, or are away from the end of OFFLOAD to the start of RELOAD. With them count the parameters of
  // the stages that the actor computes with: from each UNSHARD's start to its RESHARD, or always where it has no UNSHARD of the stage;
  // and the sums of gradients that a REDUCE_GRAD follows: from the first B or W to its end.
  std::vector<double> peak_live, peak_time;
  std::vector<Position> order;           // if recorded: all actions, each after all that it needs
  std::vector<TableTransfer> transfers;  // if recorded: each behind those before it on its link, ahead of who needs it in `order`

  // 1 - busy / (actors * makespan).
  double bubble() const;
  // The largest of peak_live.
  double peak() const { return *std::max_element(peak_live.begin(), peak_live.end()); }
};

// Takes a valid table and costs of all its stages, which are finite and not negative. Linear in actions and edges; where links share a
// medium, times the logarithm of the number of actors. Transfers leave on a link, or a medium, in the order in which they are ready. Where
// a table has sends, but not the receives of what they send, these are not waited for.
TableTime time_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options = {});

// No table that places this work as this one can be faster: the longest path through what actions need of each other, with transfers but as
// if every actor could run any number of actions at once and no link were ever occupied.
double dependency_bound(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options = {});

// `time`: of this table, recorded. In the costs' own unit; memory is in activations.
Timeline timeline_of(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableTime& time);

}  // namespace penstock
