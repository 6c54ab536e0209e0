// SPDX-License-Identifier: Apache-2.0
// Cuts sequences into slices that follow one another through a pipeline: TeraPipe's planner (Li et al., 2102.07988, section 3).
#pragma once

#include <functional>
#include <vector>

#include "base/numbers.h"

namespace penstock {

// The time that a stage takes for `length` tokens behind `context` others of each of `sequences` sequences. It is not negative, and
// infinite where there can be no such slice. Lengths may be counted in units of several tokens.
using SliceCost = std::function<double(int sequences, int length, int context)>;

// fixed + sequences (per_token length + per_pair length (context + length / 2)): a causal slice attends to so many pairs of tokens.
struct SliceFormula {
  double fixed = 0, per_token = 0, per_pair = 0;

  double operator()(int sequences, int length, int context) const {
    return fixed + 1.0 * sequences * length * (per_token + per_pair * (context + 0.5 * length));
  }
};

struct SliceProblem {
  int actors = 1;  // stages, each on an actor of its own
  int sequences = 1;
  int length = 1;  // of each sequence
};

// Sequences that are computed together.
struct SliceGroup {
  int sequences = 1;
  std::vector<int> slices;  // lengths, from the sequence's first token on
};

struct SlicePlan {
  double time = kInfinity;  // sum + (actors - 1) longest; infinite where there is no plan
  double sum = 0;           // of the times of all slices of all groups
  double longest = 0;       // the longest time of a slice
  std::vector<SliceGroup> groups;
};

// The plan of least time over all divisions into groups and all lengths of their slices. Its time is that of all forwards alone, or that of
// all backwards, by the cost of either; for both together it is exact where one slice is the longest in both. Equal slices win ties, and
// after them the smaller sum; figures within 1e-12 of each other count as equal. It asks for sequences length^2 / 2 costs for the first
// threshold of a slice's time, and for as much less at each further one as slices get shorter: by a formula two to three times
// sequences length^2 in all (slice_sequences.cpp). Memory: O(sequences length).
SlicePlan slice_sequences(const SliceProblem& problem, const SliceCost& cost);

// The plan of least time whose groups have equally many sequences, and whose slices are all equally long.
SlicePlan equal_slices(const SliceProblem& problem, const SliceCost& cost);

}  // namespace penstock
