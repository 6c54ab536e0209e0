// SPDX-License-Identifier: Apache-2.0
// How fast a run's devices have worked, and so how long a step of another program would take on them.
#pragma once

#include <cstdint>
#include <map>

#include "devices/cluster.h"
#include "penstock/program.h"
#include "simulate/simulate.h"

namespace penstock {

class Pace {
 public:
  // A step of `program`, with spans.
  void add(const Program& program, const StepResult& result);
  std::int64_t steps() const { return steps_; }  // that were added

  // Seconds that a step takes, as the simulator says of these times, times what steps took beyond what it said of them. Tasks that nobody
  // ran take the seconds for each flop that the others took. 0: no step was added.
  double predict(const Program& program) const;

 private:
  struct Mean {
    double sum = 0, count = 0;
    void add(double value) { sum += value, ++count; }
    double value() const { return count > 0 ? sum / count : 0; }
  };
  Durations durations_of(const Program& program) const;

  std::map<std::uint64_t, Mean> tasks_;  // by cost_hash of the graph: seconds of a run
  std::map<Opcode, Mean> others_;        // of an instruction that is no run
  double flops_ = 0, seconds_ = 0;       // of all runs
  Mean beyond_;                          // seconds of a step, divided by what the simulator says
  std::int64_t steps_ = 0;
};

}  // namespace penstock
