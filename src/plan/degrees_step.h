// A step of one choice of degrees: its table with collectives, what its actions cost, what its devices hold.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "plan/degrees.h"
#include "plan/degrees_blocks.h"
#include "simulate/table.h"

namespace penstock {

// Keeps what choices have in common. Refers to the problem, which must outlive it.
class DegreesSteps {
 public:
  DegreesSteps(const PlanProblem& problem, const DegreesOptions& options) : problem_(problem), options_(options) {}

  const std::vector<Block>& blocks(int samples);

  // No step of these degrees is shorter, and no device of one that fits holds less: what is known without a table.
  struct Bound {
    double seconds = 0;
    double memory = 0;  // on the fullest device
  };
  Bound bound(const Degrees& degrees);
  std::int64_t work(const Degrees& degrees);  // elementary steps of bound()
  DegreesResult run(const Degrees& degrees);

 private:
  const std::vector<int>& cuts(const Degrees& degrees);

  const PlanProblem& problem_;
  DegreesOptions options_;
  std::map<int, std::vector<Block>> blocks_;             // by samples
  std::map<std::array<int, 3>, std::vector<int>> cuts_;  // by samples, actors and chunks
};

// The table that its actors compute by: the schedule's without collectives, with R before each backward where they recompute. A run makes
// table_of() of it.
Schedule computing_table(const Degrees& degrees);

// The table of the degrees' schedule: with R before each backward where they recompute; gradients reduced and parameters gathered as their
// ZeRO level says; the update of each stage behind all else of its actor.
Schedule table_of(const Degrees& degrees);

// What a device of an actor always holds of `parameters` elements whose states are kept at the degrees' ZeRO level by their replicas
// (Rajbhandari et al., 1910.02054, figure 1).
double resident_bytes(const StateBytes& states, double parameters, const Degrees& degrees);

}  // namespace penstock
