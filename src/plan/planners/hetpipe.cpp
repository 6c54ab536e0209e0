// SPDX-License-Identifier: Apache-2.0
// HetPipe (Park et al., 2005.14038): virtual workers of unequal devices. Each worker is a pipeline, and the workers are data parallel.
//
// All workers are alike: each has as many devices of every kind (the paper's "equal distribution"), and a stage has one device of each
// worker, all of one kind, which share its micro-batches. The original takes the devices' order as given and cuts the layers by an integer
// program; here one dynamic program finds the order of the kinds and the cuts, over how many devices of each kind the stages behind a
// border have. A stage has as many micro-batches in flight as there are stages from it on.
//
// Objective: the largest load of a stage or a link, in seconds of one micro-batch. Among all numbers of workers that divide the devices of
// each kind, the plan with the fastest simulated step is taken.
#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "planners/chain_view.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

struct DeviceKind {
  double speed = 1, memory = kInfinity;
  std::vector<int> devices = {};
};

std::vector<DeviceKind> kinds_of(const ClusterSpec& cluster) {
  std::vector<DeviceKind> kinds;
  for (int d = 0; d < std::ssize(cluster.devices); ++d) {
    const ClusterDevice& device = cluster.devices[at(d)];
    auto kind = std::ranges::find_if(kinds, [&](const DeviceKind& k) { return k.speed == device.speed && k.memory == device.memory; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {device.speed, device.memory});
    kind->devices.push_back(d);
  }
  return kinds;
}

// The devices of so many workers. A state says how many devices of each kind the stages behind a border have, as one number: that of kind k
// times strides[k].
struct Workers {
  const ChainView& view;
  std::vector<DeviceKind> kinds;
  int workers = 1;
  std::vector<std::size_t> strides = {};  // and the number of states

  Workers(const ChainView& chain, std::vector<DeviceKind> all, int count) : view(chain), kinds(std::move(all)), workers(count) {
    strides.push_back(1);
    for (std::size_t k = 0; k < kinds.size(); ++k) strides.push_back(strides.back() * at(own(k) + 1));
  }
  int own(std::size_t kind) const { return static_cast<int>(kinds[kind].devices.size()) / workers; }
  int left(std::size_t state, std::size_t kind) const { return static_cast<int>(state / strides[kind] % at(own(kind) + 1)); }
  int stages(std::size_t state) const {
    int out = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) out += left(state, k);
    return out;
  }
  // The workers' devices for the first stage in a state, which is of this kind; first stages have those that come first.
  std::vector<int> devices(std::size_t state, std::size_t kind) const {
    const auto first = kinds[kind].devices.begin() + (own(kind) - left(state, kind)) * workers;
    return {first, first + workers};
  }
};

struct Cut {
  double load = kInfinity;  // the largest of the stages from here on and of the links between them
  int end = 0;              // border at which the first of these stages ends
  std::size_t next = 0;     // the kind of the stage behind it
};
using Cuts = std::vector<std::vector<std::vector<Cut>>>;  // at [state][kind of the first stage][border]

// The best cut of a state behind a border, if the stage before it is on `device`.
Cut best_behind(const Workers& w, const Cuts& cuts, std::size_t state, int border, int device) {
  Cut best;
  for (std::size_t k = 0; k < w.kinds.size(); ++k) {
    const double load = cuts[state][k][at(border)].load;
    if (load >= best.load) continue;
    const ClusterLink link = w.view.problem->cluster.link(device, w.devices(state, k)[0]);
    const double slower = std::max(load, transfer_seconds(w.view, border, link, w.workers, w.workers));
    if (slower < best.load) best = {slower, border, k};
  }
  return best;
}

Cut best_cut_at(const Workers& w, const Cuts& cuts, std::size_t state, std::size_t kind, int begin) {
  const std::size_t behind = state - w.strides[kind];
  const int device = w.devices(state, kind)[0], atoms = w.view.atoms(), stages = w.stages(state);
  Cut best;
  for (int end = behind == 0 ? atoms : begin + 1; end <= atoms - (stages - 1); ++end) {
    const SetCost cost = cost_of(w.view, begin, end, w.workers);
    const double load = (cost.forward + cost.backward) / w.kinds[kind].speed;
    if (load >= best.load || !fits(bytes_of(w.view, begin, end, w.workers, stages), w.kinds[kind].memory)) break;
    const Cut after = behind == 0 ? Cut{0, end, 0} : best_behind(w, cuts, behind, end, device);
    if (std::max(load, after.load) < best.load) best = {std::max(load, after.load), end, after.next};
  }
  return best;
}

// Incomplete where the time is over.
Cuts cuts_of(const Workers& w, TimeLimit& limit) {
  const int atoms = w.view.atoms();
  Cuts cuts(w.strides.back(), std::vector(w.kinds.size(), std::vector<Cut>(at(atoms + 1))));
  for (std::size_t state = 1; state < cuts.size(); ++state)
    for (std::size_t kind = 0; kind < w.kinds.size(); ++kind) {
      if (w.left(state, kind) == 0) continue;
      for (int begin = 0; begin < atoms; ++begin) {
        if (limit.is_over(atoms - begin)) return cuts;
        cuts[state][kind][at(begin)] = best_cut_at(w, cuts, state, kind, begin);
      }
    }
  return cuts;
}

std::optional<ChainPlan> plan_of(const Workers& w, TimeLimit& limit) {
  const Cuts cuts = cuts_of(w, limit);
  std::size_t state = cuts.size() - 1, kind = 0;
  for (std::size_t k = 1; k < w.kinds.size(); ++k)
    if (cuts[state][k][0].load < cuts[state][kind][0].load) kind = k;
  const double bottleneck = cuts[state][kind][0].load;
  if (bottleneck == kInfinity) return {};
  std::vector<PlanStage> stages;
  for (int begin = 0; state > 0;) {
    const Cut& cut = cuts[state][kind][at(begin)];
    stages.push_back(stage_of(w.view, begin, cut.end, w.devices(state, kind)));
    stages.back().ahead = w.stages(state);
    begin = cut.end;
    state -= w.strides[kind];
    kind = cut.next;
  }
  return timed_chain(w.view, std::move(stages), bottleneck, limit);
}

std::optional<ChainPlan> best_workers(const ChainView& view, TimeLimit& limit) {
  constexpr std::size_t kMostStates = 1 << 16;
  const std::vector<DeviceKind> kinds = kinds_of(view.problem->cluster);
  int alike = 0;  // the most workers
  for (const DeviceKind& kind : kinds) alike = std::gcd(alike, static_cast<int>(kind.devices.size()));
  std::optional<ChainPlan> best;
  for (int workers = 1; workers <= std::min(alike, view.most_replicas()); ++workers) {
    if (alike % workers != 0) continue;
    const Workers w(view, kinds, workers);
    if (w.strides.back() > kMostStates || w.stages(w.strides.back() - 1) > most_stages(view)) continue;
    std::optional<ChainPlan> plan = plan_of(w, limit);
    if (plan && (!best || plan->value < best->value * (1 - 1e-9))) best = std::move(plan);
  }
  return best;
}

}  // namespace

Plan plan_by_hetpipe(const PlanProblem& problem, const PlanOptions& options) {
  return plan_of_chain("hetpipe", problem, {.most_atoms = 128, .replicas = true, .by_trial = true}, options, best_workers);
}

}  // namespace penstock
