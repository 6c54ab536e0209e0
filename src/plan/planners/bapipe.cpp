// SPDX-License-Identifier: Apache-2.0
// BaPipe (Zhao et al., 2012.12544): a chain of stages balanced over devices of unequal speeds, and the schedule that it needs.
//
// Each stage has one device; its load is its forward and backward at that device's speed. Where links limit, cuts move to places where
// little crosses; where memory limits, nodes move to other stages. The original does that in three rounds, from shares proportional to the
// speeds. Here one dynamic program finds, among the cuts that fit, those with the smallest largest load of stages and links. It is run for
// each of two schedules: 1F1B (p - i micro-batches in flight at stage i, "SNO") and, for long transfers, twice as many but one (2(p - i) -
// 1, "SO"), if they fit.
//
// Objective: the largest load, in seconds of one micro-batch. Among all numbers of stages and both schedules the plan with the fastest
// simulated step is taken; of equal ones that with fewer in flight.
#include <algorithm>

#include "base/numbers.h"
#include "planners/chain_view.h"
#include "planners/improve_plan.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

enum class Warmup { one_forward_one_backward, overlapped };

// Micro-batches in flight at the nth stage from the end.
int in_flight(Warmup warmup, int from_end) {
  return warmup == Warmup::overlapped ? 2 * from_end - 1 : from_end;
}

struct Cut {
  double load = kInfinity;  // the largest load of the stages from here on and of the links between them
  int end = 0;              // border at which the first of these stages ends
};

// For s stages on the last s devices, the best cuts of the atoms from each border on, at [s][border]. Incomplete where the time is over.
std::vector<std::vector<Cut>> cuts_of(const ChainView& view, const std::vector<int>& devices, Warmup warmup, TimeLimit& limit) {
  const int n = view.atoms(), p = static_cast<int>(devices.size());
  std::vector<std::vector<Cut>> cuts(at(p + 1), std::vector<Cut>(at(n + 1)));
  cuts[0][n].load = 0;
  for (int s = 1; s <= p; ++s) {
    const int device = devices[p - s];
    const ClusterDevice& here = view.problem->cluster.devices[device];
    const ClusterLink link = s > 1 ? view.problem->cluster.link(device, devices[p - s + 1]) : ClusterLink{};
    for (int begin = 0; begin < n; ++begin) {
      if (limit.is_over(n - begin)) return cuts;
      Cut& best = cuts[s][begin];
      for (int end = begin + 1; end <= n; ++end) {
        const SetCost cost = cost_of(view, begin, end);
        const double load = (cost.forward + cost.backward) / here.speed;
        if (load >= best.load || !fits(bytes_of(view, begin, end, 1, in_flight(warmup, s)), here.memory)) break;
        const double after = std::max(cuts[s - 1][end].load, s > 1 ? transfer_seconds(view, end, link, 1, 1) : 0);
        if (std::max(load, after) < best.load) best = {std::max(load, after), end};
      }
    }
  }
  return cuts;
}

std::optional<ChainPlan> cut_into(const ChainView& view, int count, Warmup warmup, TimeLimit& limit) {
  const std::vector<int> devices = fastest_devices(view.problem->cluster, count);
  const auto cuts = cuts_of(view, devices, warmup, limit);
  if (cuts[count][0].load == kInfinity) return {};
  std::vector<PlanStage> stages;
  for (int s = count, begin = 0; s > 0; --s) {
    const int end = cuts[s][begin].end;
    stages.push_back(stage_of(view, begin, end, {devices[count - s]}));
    stages.back().ahead = in_flight(warmup, s);
    begin = end;
  }
  return timed_chain(view, std::move(stages), cuts[count][0].load, limit);
}

std::optional<ChainPlan> best_cut(const ChainView& view, TimeLimit& limit) {
  std::optional<ChainPlan> best;
  for (const int count : stage_counts(most_stages(view)))
    for (const Warmup warmup : {Warmup::one_forward_one_backward, Warmup::overlapped}) {
      std::optional<ChainPlan> plan = cut_into(view, count, warmup, limit);
      if (plan && (!best || plan->value < best->value * (1 - 1e-9))) best = std::move(plan);
    }
  return best;
}

}  // namespace

Plan plan_by_bapipe(const PlanProblem& problem, const PlanOptions& options) {
  return plan_of_chain("bapipe", problem, {.in_flight = InFlight::pipelined}, options, best_cut);
}

}  // namespace penstock
