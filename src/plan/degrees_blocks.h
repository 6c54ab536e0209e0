// A costed graph as a row of blocks, and even pieces of it.
#pragma once

#include <vector>

#include "penstock/plan.h"

namespace penstock {

// Neighbouring nodes of a topological order; behind each block one output at most goes on.
struct Block {
  std::vector<int> nodes;
  double forward = 0, backward = 0, weight = 0;  // seconds of a micro-batch on a device of speed 1; weight: of backward
  double live_bytes = 0;                         // of a micro-batch in flight
  double parameters = 0;                         // elements
  double update = 0;                             // seconds of all of it, on a device of speed 1
  double bytes = 0;                              // of a micro-batch, that go on behind it
};

// Of micro-batches of so many samples. parameter_bytes: that NodeCost::parameter_bytes counts for each parameter. Throws Error for a node
// that runs on no single device, and where transfers were measured as times: replicas have other links.
std::vector<Block> blocks_of(const PlanProblem& problem, double samples, double parameter_bytes);

// The first block of each of actors * chunks pieces, none empty, and behind the last; piece s is of actor s % actors. Of the pieces whose
// largest forward and backward is least the most even (the least sum of squares); then single blocks go to a neighbouring piece while that
// makes the actors' sums more even and no piece larger than those. Quadratic in blocks, times pieces.
std::vector<int> even_cuts(const std::vector<Block>& blocks, int actors, int chunks);

}  // namespace penstock
