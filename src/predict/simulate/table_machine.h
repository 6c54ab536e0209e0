// SPDX-License-Identifier: Apache-2.0
// The machine that a table runs on, by a few numbers: what an actor's share of the work takes, links, and what disturbs them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/network.h"
#include "penstock/table.h"
#include "simulate/explain.h"

namespace penstock {

// One link between two actors, both directions; what is not said is as every other link has it.
struct NumberedLink {
  std::int32_t a = 0, b = 0;
  std::optional<double> latency, bandwidth;
};

// All numbers are finite and not negative, bandwidths above 0 and perhaps infinite. Times are in any one unit, or in seconds beside
// `measured`; they are of one micro-batch and an actor's whole share of the stages.
struct TableNumbers {
  std::optional<double> forward, backward;  // of F [1], of B [input + weight]
  std::optional<double> input, weight;      // of I, of W [half of backward, or 1]
  std::optional<double> recompute;          // of R [forward's, or as measured]
  std::optional<double> offload;            // of a copy of a micro-batch's activations to host memory, or back [0]
  std::optional<double> kept;               // part of a micro-batch's activations that R and offloading leave there [0]
  std::optional<double> gather, reduce;     // of UNSHARD and REDUCE_GRAD of an actor's share of parameters [0]
  std::optional<double> parameters;         // what an actor's share of parameters counts, in activations [0]
  bool per_stage = false;                   // all these times are of each stage, with all its slices
  std::optional<double> latency;            // of every link, in the times' unit [0]
  std::optional<double> bandwidth;          // of every link, in bytes per unit of time [infinite]
  std::optional<double> bytes;              // of one transfer of a whole micro-batch [0]
  std::vector<NumberedLink> links;
  std::vector<double> stage_times, slice_times;  // relative to one another, one for each; empty: alike
  double jitter = 0;                             // Disturbance's
  std::uint64_t seed = 0;
  std::vector<double> slowdown;  // of each actor; empty: none
  bool atomic_pairs = false;     // TableOptions'
  // In place of the times above from forward to weight, and of latency and bandwidth unless these are given.
  std::optional<Costs> measured;
  std::string file = "costs.json", backend = "threads";  // where `measured` is from, for messages; whose links and overheads count
};

struct TableMachine {
  TableCosts costs;
  TableOptions options;
};

// `schedule` is valid. Throws Error where measured costs lack what the table needs.
TableMachine machine_of(const Schedule& schedule, const TableNumbers& numbers);
// The schedule under fully sharded parameters where `gather` is given, else as it is.
Schedule sharded_by(const TableNumbers& numbers, Schedule schedule);

// For searches, which have no table yet: the costs of a chain of whole stages, and the links between so many actors. `split`: set to
// whether I and W were measured.
TableMachine machine_of_chain(std::int32_t stages, std::int32_t actors, const TableNumbers& numbers, bool& split);

// The table's step on machines that are better in one way each: without latency, with unlimited bandwidth, with the busiest actor or the
// dearest stage 10 % faster, without stragglers. All arguments must outlive the variants; `time` is the table's on `machine`.
std::vector<Variant> better_machines(const Schedule& schedule, const StageShape& shape, const TableMachine& machine, const TableTime& time);

}  // namespace penstock
