// SPDX-License-Identifier: Apache-2.0
// Finds a table for given costs, links and a memory limit, and proves how far from the best it can be.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "penstock/schedule.h"
#include "penstock/table.h"

namespace penstock {

// Micro-batches that take the same way: stage s of each runs on actor_of_stage[s], all of it.
struct Route {
  std::vector<std::int32_t> actor_of_stage;  // by stage
  std::vector<std::int32_t> microbatches;    // ascending

  bool operator==(const Route&) const = default;
};
// Where all work runs; several routes where stages have replicas.
using Placement = std::vector<Route>;
// By the actors of a valid table's forwards.
Placement placement_of(const Schedule& schedule);
// The most copies of a stage's parameters: the actors that run it.
int copies_of(const Placement& placement);

// The work that a table is searched for, and the limits that it keeps.
struct SearchProblem {
  StageShape shape;      // stages that the table must have
  int actors = 1;        // rows of the table
  int microbatches = 1;  // in the whole table
  TableCosts costs;      // of F and of what the backward may be
  Network network{};     // links between actors, in the costs' unit of time
  // Most activations that may live on an actor at once, in StageCosts::live's unit.
  double memory_limit = std::numeric_limits<double>::infinity();
  int copies = 1;     // most copies of a stage's parameters, where no placements are given
  bool whole = true;  // backwards may be one B,
  bool split = true;  // or I and W; one of them at least
  // Whether the table may also have R; and OFFLOAD with RELOAD.
  bool recompute = false, offload = false;
  bool sharded = false;          // every table with_gathers
  bool order_transfers = false;  // the table may say where sends and receives start, in one step, where that makes it faster
  // Training steps in the table, of microbatches / steps each, none of them drained before the next: behind each, stages are updated
  // (with_step_updates), on the one actor that each is on.
  int steps = 1;
  // The most updates of a stage between what a gradient of such a table was made with and its own step's.
  int staleness = 1;
};

// Where a search looks, and how long.
struct SearchOptions {
  std::vector<Placement> placements = {};  // empty: those of the registered schedules, and stages along the actors and back
  std::uint64_t seed = 0;                  // of the draws that the improvement makes
  // Most steps of the improvement and of the proof. The result depends on nothing else unless the seconds run out first.
  std::int64_t moves = 20000, nodes = 100000;
  double seconds = std::numeric_limits<double>::infinity();
  std::vector<Schedule> given = {};  // where micro-batches differ: valid tables to begin with
};

// A table that a search came upon.
struct FoundTable {
  Schedule schedule;     // the table
  double makespan = 0;   // in the costs' unit of time
  std::string found_by;  // the schedule, heuristic or step that found it
};

// The fastest table that was found, with what is proven of it.
struct SearchResult {
  Schedule schedule;          // the fastest
  TableTime time;             // when its actions run, in the costs' unit
  std::string found_by;       // the schedule, heuristic or step that found it
  double inferred_time = 0;   // the makespan of its rows without sends and receives: transfers start as soon as they can
  std::string generator;      // the best registered schedule within the limit; empty: none
  double generator_time = 0;  // its makespan
  double lower_bound = 0;     // of every table with one of the placements
  bool optimal = false;       // proven: no such table is faster
  std::int64_t nodes = 0;     // of the proof
  // Other tables within the limit that the search came upon, mostly each of another makespan; the fastest first.
  std::vector<FoundTable> runners_up;

  // Returns the share by which the table may be slower than possible: makespan / lower_bound - 1.
  double gap() const { return lower_bound > 0 ? time.makespan / lower_bound - 1 : 0; }
};

// The fastest table found whose actors never hold more than the limit, up to rounding: of registered schedules, list schedules under many
// priorities, and what moving their actions makes of the best of them; never slower than the fastest registered schedule that fits.
// All micro-batches cost alike, so that each stage's kind runs them in order (in any table, renaming the k-th of a stage's F, I and W to
// micro-batch k of its route breaks no need and changes no time): what is searched is the order of kinds and stages on each actor.
// I and W stay at home; tables with some elsewhere, which layerpipe makes for stages of unequal times, are only taken as registered.
// Where the costs have classes, micro-batches differ, and what is searched is their order as well, of a chain with one stage on each actor:
// `moves` tables are timed at most, beside those given.
// In a table for several steps each F reads what is newest in its row: a leg's next forward, and its next gradient, wait for so many of
// its own gradients. Registered tables that read other versions are taken as they are. Where recomputation or offloading is allowed,
// parameters are sharded or count: tables for this and larger limits, and the registered ones, take gathers, are relieved to the limit
// (relieve.h) and improved as they are; the bound is that of work without all this. With order_transfers sends are moved too, in the best
// of the tables that were found, and the bound holds for any order of them. Throws Error where no table keeps the limit (of a chain; other
// graphs are held to what one micro-batch at a time needs), with the smallest that would do, and where no schedule fits the shape and no
// placement is given.
SearchResult search_schedule(const SearchProblem& problem, const SearchOptions& options = {});

// Returns the options that a schedule is tried with: those it chooses itself, each of --unit, --group and --in-flight that it takes at 1,
// 2, 4, ... micro-batches, and the shape's --balance. The same for any number of chunks.
std::vector<ScheduleOptions> option_sets(const ScheduleInfo& info, const ScheduleOptions& shape);

// The registered schedules with this shape: each once as it chooses itself, or why it cannot be had, and each other table that its options
// make.
struct RegisteredTable {
  std::string name;         // the schedule's
  ScheduleOptions options;  // that it was made with
  Schedule schedule;        // empty where it was refused
  std::string refused;      // the first line of why

  std::string title() const;  // "zeropp --unit 4"
};
std::vector<RegisteredTable> registered_tables(const ScheduleOptions& shape);
// The tables that a search may take: their backwards have costs, and they stand where it looks.
std::vector<RegisteredTable> tables_for(const SearchProblem& problem, const SearchOptions& options);
// The ones of these that keep the limit as they are; the fastest first.
std::vector<FoundTable> tables_within(const SearchProblem& problem, const SearchOptions& options);

}  // namespace penstock
