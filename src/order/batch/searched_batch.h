// SPDX-License-Identifier: Apache-2.0
// A whole batch by search: which samples go together, in which order they enter the pipeline, and what each actor runs when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "batch/batch_costs.h"
#include "batch/cut_batch.h"
#include "penstock/search.h"

namespace penstock {

struct SearchedBatchProblem {
  std::vector<SampleLengths> samples;  // padded() where rows are padded; in ragged rows, as they are
  std::vector<std::size_t> order;      // in which padded samples are cut
  bool ragged = false;                 // the samples of a micro-batch share one row, in any number
  bool decoder = false;                // targets have rows of their own
  std::int64_t round = 8;              // a ragged row's tokens are a multiple of it
  int actors = 1;                      // each has one stage of a chain
  StageCostsOf costs;
  Network network{};
  double limit = kInfinity;               // of what lives on an actor at once, in StageCosts::live's unit
  bool split = false, recompute = false;  // what tables may do: I and W in B's place; R
  int layers = 0;                         // of each stage that its backwards may compute again one by one (BatchShape::again)
  // How much all of a batch's backwards may compute again by themselves: DynaPipe's plan takes one of them.
  std::vector<Recompute> modes = {Recompute::none};
  // Tables that the search times, at most, beside those given. The result depends on nothing else and the seed.
  std::int64_t candidates = 400;
  std::uint64_t seed = 0;
};

// A planner's answer: by micro-batch of the table, its samples (indices), and its shape and load.
struct PlannedBatch {
  std::vector<std::vector<std::size_t>> samples;
  std::vector<BatchLoad> loads;
  Schedule schedule;
  double time = 0;  // of the table, by the costs
  double peak = 0;  // the most that lives on an actor at once
  std::string found_by;
};

// The most slices of a micro-batch; 0: the planner cuts none.
int most_slices(const PlannedBatch& plan);

// DynaPipe's plan (plan_batch) by the same costs, in the fastest mode that the limit allows; rows must be padded. Two candidates for the
// longest time differ by more than a hundredth of what the longest sample takes. Throws Error as plan_batch does.
PlannedBatch dynapipe_batch(const SearchedBatchProblem& problem);

// Ragged rows of nearly equal work, as many as the table has micro-batches, under this table. Nothing is timed.
PlannedBatch balanced_batch(const SearchedBatchProblem& problem, const Schedule& schedule);

// The costs of micro-batches of these loads; those of one padded shape are of one class. Where they have slices, for a table in as many as
// the most of one.
TableCosts table_costs(const std::vector<BatchLoad>& loads, const StageCostsOf& costs);

// When the plan's actions run under other costs.
TableTime time_batch(const PlannedBatch& plan, const StageCostsOf& costs, const Network& network = {});
// Sets the plan's time and peak by the problem's costs.
void time_plan(const SearchedBatchProblem& problem, PlannedBatch& plan);

// Tries DynaPipe's cut under its own table; cuts into more and fewer micro-batches or, of ragged rows, balanced rows in several numbers;
// and takes the one whose table, searched, is fastest. So it is never slower than DynaPipe's plan under the same limit. Throws Error where
// a sample does not keep the limit by itself.
PlannedBatch search_batch(const SearchedBatchProblem& problem);

}  // namespace penstock
