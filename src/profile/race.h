// Finds the fastest of several programs of one model on this machine, by whole training steps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "penstock/costs.h"
#include "penstock/program.h"

namespace penstock {

struct RaceOptions {
  int rounds = 3;
  std::int64_t steps = 8, warm_up = 2;                      // steps of a program in each round: those measured, and those before them
  std::function<StepInput(std::int64_t step)> input;        // the data that a step reads; steps count from 1 over the whole race
  std::function<void(const std::string& text)> progress{};  // called with a line at the begin of each round
};

// Seconds of a step of each program, in their order. In each round every program runs once, in turn, so that a slow minute of the machine
// slows all of them; a program's time is the median of its rounds' medians. After each round those of the slower half that are clearly
// behind the fastest (kBehind) leave; their samples have fewer rounds. All programs are of one model and for the cluster's devices; each
// round starts from `state`. Throws what the cluster throws.
std::vector<Sample> race(Cluster& cluster, const std::vector<Program>& programs, const StateSource& state, const RaceOptions& options);
constexpr double kBehind = 1.1;  // the share by which a program is clearly behind: the rounds of one program mostly differ by less

// Whether a stayed longer in one race than b, or as long and was faster.
bool is_ahead(const Sample& a, const Sample& b);

}  // namespace penstock
