// SPDX-License-Identifier: Apache-2.0
// Embeddings that are looked up beside the dense layers: NestPipe (2604.06956). What a batch names of the tables is brought by a chain of
// lanes, each a step ahead of the next, and within a step the tables are frozen, so that micro-batches' exchanges run beside dense layers.
#pragma once

#include <vector>

#include "penstock/table.h"

namespace penstock {

// Times in any unit, finite and not negative.
struct PrefetchProblem {
  std::vector<double> lanes;  // a batch in each lane, in order; the last computes, the one before it fills a buffer; at least two
  int batches = 2;            // from 2
  int buffers = 2;            // a batch has one from when its rows are retrieved until it is computed; from 1
  double synchronise = 0;     // bringing up to date, ahead of a batch, the retrieved rows that the update before it has changed
};

// The tables of a step stay as they are until its end, so its micro-batches only wait for their own rows. What is exchanged has one lane.
struct FrozenWindow {
  double embed = 0, dense = 0, gradient = 0;  // of a step: rows to those who asked, forward and backward, gradients back
  int microbatches = 1;                       // that share these evenly
};

// Both are tables: lanes are actors, and each batch or micro-batch goes through them.
struct LaneTable {
  Schedule schedule;
  StageShape shape;
  TableCosts costs;
  TableTime time;  // recorded
};

// A lane has a stage, forward alone, but for the last two: a backward of the last stage is the rest of the batch's computing, and that of
// the one before it gives the buffer back. Synchronising is a stage of its own between these, in the computing lane. The first batch needs
// none, nor any with a single buffer, as its rows are retrieved behind the update. Throws Error for what is no such problem.
LaneTable prefetched_batches(const PrefetchProblem& problem);
// From the end of the last batch but one to the end of the last.
double period_of(const LaneTable& prefetched);

// Throws Error for what is no such window.
LaneTable frozen_window(const FrozenWindow& window);

}  // namespace penstock
