// SPDX-License-Identifier: Apache-2.0
// Explains a plan: what holds it up, the next best plan, and what a larger cluster would give.
#pragma once

#include <string>
#include <vector>

#include "penstock/plan.h"

namespace penstock {

// A plan to compare with.
struct OtherPlan {
  std::string planner;        // its name
  double predicted_time = 0;  // seconds of a step
};

// Reasons for a plan's time, and times under changed circumstances.
struct PlanExplanation {
  std::string bottleneck, detail;  // "stage", "link", "memory" or, of degrees, "compute", "bubble" or "communication"; with its figures
  OtherPlan next;                  // the best other plan; planner "": there is none
  double planned_time = 0;         // of the plan itself by the same costs as the changes', before it was measured
  // The same problem on a cluster with more of something: devices, memory, bandwidth.
  struct Change {
    std::string what;           // in words: "twice the memory"
    double predicted_time = 0;  // seconds of a step, at most planned_time
    std::string refused = {};   // why there is no such plan
  };
  std::vector<Change> changes;  // each by itself
};

// Explains what `planner` found for the problem. `others`: further plans, none where the other planners are to be asked. Takes about twice
// the seconds of the options.
PlanExplanation explain(const std::string& planner, const PlanProblem& problem, const Plan& plan, const std::vector<OtherPlan>& others = {},
                        const PlanOptions& options = {});

}  // namespace penstock
