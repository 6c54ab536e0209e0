// SPDX-License-Identifier: Apache-2.0
// A costed graph as a row of atoms, and its cut into even pieces.
#pragma once

#include <functional>
#include <vector>

#include "penstock/plan.h"

namespace penstock {

// An atom: neighbouring nodes of a topological order. At most one output goes on behind each atom, beside those that many nodes read.
struct Atom {
  std::vector<int> nodes;
  // Seconds of a micro-batch on a device of speed 1; weight: the part of backward that weight gradients take.
  double forward = 0, backward = 0, weight = 0;
  double live_bytes = 0;  // for each micro-batch in flight
  double parameters = 0;  // number of elements
  double update = 0;      // seconds for all its parameters, on a device of speed 1
  double bytes = 0;       // bytes of a micro-batch that go on behind it
  // Seconds of a micro-batch that its nodes' collectives (NodeCost::steps) take beyond the work that hides them, in F, B, I, W
  // and, once a step, U.
  double wait_forward = 0, wait_backward = 0, wait_input = 0, wait_weight = 0, wait_update = 0;
};

// Seconds that a collective of a node takes.
using StepSeconds = std::function<double(const NodeStep&)>;

// The atoms, with costs for micro-batches of so many samples. parameter_bytes: bytes that NodeCost::parameter_bytes counts for each
// parameter. Throws Error for a node that runs on no single device, and where transfers were measured as times: replicas have other links.
std::vector<Atom> atoms_of(const PlanGraph& graph, double samples, double parameter_bytes, const StepSeconds& seconds = {});

// Cuts the atoms into actors * chunks pieces, none empty: returns the first atom of each and the number of atoms. Piece s belongs to
// actor s % actors. Among the cuts whose largest piece (forward and backward, with what they wait) is least the most even is taken (the
// least sum of squares); then single atoms go to a neighbouring piece while that makes the actors' sums more even and no piece larger than
// the largest. Quadratic in atoms, times pieces.
std::vector<int> even_cuts(const std::vector<Atom>& atoms, int actors, int chunks);

}  // namespace penstock
