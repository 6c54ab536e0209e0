// Which of several programs of one model is the fastest here, in whole training steps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/cluster.h"
#include "simulate/costs.h"

namespace penstock {

struct RaceOptions {
  int rounds = 3;
  std::int64_t steps = 8, warm_up = 2;                      // of a program in each round: measured, and before them
  std::function<StepInput(std::int64_t step)> input;        // what a step reads; steps count from 1 over the whole race
  std::function<void(const std::string& text)> progress{};  // a line at the begin of each round
};

// Seconds of a step of each program, in their order. In each round every program runs once, in turn, so that a slow minute of the machine
// slows all of them; what counts is the median of its rounds' medians. After each round those of the slower half leave that are clearly
// behind the fastest (kBehind); their samples have fewer rounds. All programs are of one model and on the cluster's devices; each round
// starts from `state`. Throws what the cluster throws.
std::vector<Sample> race(Cluster& cluster, const std::vector<Program>& programs, const StateSource& state, const RaceOptions& options);
constexpr double kBehind = 1.1;  // by more than the rounds of one program mostly differ

// Whether it stayed longer in one race, or as long and was faster.
bool is_ahead(const Sample& a, const Sample& b);

}  // namespace penstock
