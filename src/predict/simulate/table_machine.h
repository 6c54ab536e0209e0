// SPDX-License-Identifier: Apache-2.0
// The machine that a table runs on, by a few numbers: what an actor's share of the work takes, links, and what disturbs them; the table's
// step on it, and the search for a table for it. The command line's flags and the Python package's keywords are these numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/network.h"
#include "penstock/rules.h"
#include "penstock/search.h"
#include "penstock/table.h"
#include "simulate/explain.h"

namespace penstock {

// One link between two actors, both directions; what is not said is as every other link has it.
struct NumberedLink {
  std::int32_t a = 0, b = 0;
  std::optional<double> latency, bandwidth;
};

// All numbers are finite and not negative, bandwidths above 0 and perhaps infinite; who fills them sees to it, and names what was wrong.
// Times are in any one unit, or in seconds beside `measured`; they are of one micro-batch and an actor's whole share of the stages.
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
  std::vector<double> stage_times, slice_times;  // relative to one another, one for each, one above 0; empty: alike
  double jitter = 0;                             // Disturbance's
  std::uint64_t seed = 0;
  std::vector<double> slowdown;  // of each actor; empty: none
  bool in_seconds = false;       // whether the times are in seconds; beside `measured` they are
  bool atomic_pairs = false;     // TableOptions'
  // In place of the times above from forward to weight, and of latency and bandwidth unless these are given.
  std::optional<Costs> measured;
  std::string file = "costs.json", backend = "threads";  // where `measured` is from, for messages; whose links and overheads count
};

// The costs of a table's actions, and the links between its actors.
struct TableMachine {
  TableCosts costs;
  TableOptions options;
};

// `schedule` is valid. Throws Error where measured costs lack what the table needs.
TableMachine machine_of(const Schedule& schedule, const TableNumbers& numbers);
// `network` with the latency, the bandwidth and the links that are given in place of its own.
Network with_given_links(const TableNumbers& numbers, Network network);
// The schedule under fully sharded parameters where `gather` is given, else as it is.
Schedule sharded_by(const TableNumbers& numbers, Schedule schedule);
// The table that rules make where actions and links take what the numbers say of the table that they make by their own times. Throws Error
// as make_schedule and machine_of do.
Schedule table_by(const Rules& rules, const ScheduleOptions& options, const TableNumbers& numbers);

// A table's step on a machine.
struct SimulatedTable {
  Schedule schedule;  // as sharded_by makes it
  StageShape shape;   // that it was checked against
  TableMachine machine;
  bool seconds = false;  // whether times are in seconds; else in the numbers' unit
  TableTime time;
  double dependencies = 0;  // dependency_bound's
  Timeline timeline;        // if recorded

  // The time that the busiest actor computes.
  double busiest() const;
  // Proven: no table that places this work as this one is faster.
  double lower_bound() const;
};
// Throws Error where the table is not valid, and as machine_of does.
SimulatedTable simulated_table(Schedule schedule, const TableNumbers& numbers, bool record);
// The table's timeline on a machine, `time` recorded. In seconds it has no memory, which counts micro-batches and would be read as bytes.
Timeline drawn_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableTime& time, bool seconds);
// The step on machines that are better in one way each: without latency, with unlimited bandwidth, with the busiest actor or the dearest
// stage 10 % faster, without stragglers. `table` must outlive the variants.
std::vector<Variant> better_machines(const SimulatedTable& table);

// These are SearchProblem's fields for what a search may do beside ordering work, and for the limits that its table keeps.
struct SearchNumbers {
  double activation_limit = std::numeric_limits<double>::infinity();  // micro-batches' activations of an actor's whole share; above 0
  int copies = 1, staleness = 1;
  bool recompute = false, offload = false, order_transfers = false;
};
// The search for a table of a chain of stages, shape.chunks of each actor. Of `shape` only the sizes and forward_only count; what disturbs
// a machine and slice_times do not. Throws Error where measured costs lack a whole backward; where they lack its halves, tables have none.
SearchProblem problem_of(const ScheduleOptions& shape, const SearchNumbers& search, const TableNumbers& numbers);
// The work of a table that there is, sharded already, on its machine, for relieve. Throws Error as machine_of does.
SearchProblem problem_of(const Schedule& schedule, const SearchNumbers& search, const TableNumbers& numbers);

}  // namespace penstock
