// SPDX-License-Identifier: Apache-2.0
// A plan's step without a table: what the table simulator would say, and what it cannot fall below.
#include <algorithm>

#include "base/numbers.h"
#include "cost/evaluate.h"

namespace penstock {
namespace {

// Returns the least number of micro-batches of x that hold as much as `count` of y.
int groups(const StageFigures& x, const StageFigures& y, int count = 1) {
  return (y.size * count + x.size - 1) / x.size;
}

// One pass over all stages' rows: as many forwards as a stage is ahead, then a backward and a forward in turn. A link carries one transfer
// at a time in each direction.
class StepPass {
 public:
  explicit StepPass(const PlanFigures& figures) : figures_(figures), stages_(figures.stages.size()), links_(figures.links.size()) {
    for (std::size_t l = 0; l < links_.size(); ++l) {
      const StageLink& link = figures.links[l];
      stages_[link.to].in.push_back(static_cast<int>(l));
      stages_[link.from].out.push_back(static_cast<int>(l));
      links_[l].forward.reserve(at(all(link.from)));
      links_[l].backward.reserve(at(all(link.to)));
    }
  }

  double run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        while (advance(static_cast<int>(s))) moved = true;
    }
    double end = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) end = std::max(end, stages_[s].free + figures_.stages[s].after_loop());
    return end;
  }

 private:
  struct Stage {
    int forwards = 0, backwards = 0;  // done
    double free = 0;
    std::vector<int> in, out;  // links
  };
  struct LinkTimes {
    double forward_free = 0, backward_free = 0;
    std::vector<double> forward, backward;  // arrivals of the sender's micro-batches, ascending
  };

  int all(int stage) const { return figures_.microbatches / figures_.stages[stage].size; }

  bool advance(int s) {
    Stage& stage = stages_[s];
    const StageFigures& f = figures_.stages[s];
    if (stage.backwards == all(s)) return false;
    const bool forward = stage.forwards < std::min(f.ahead / f.size + stage.backwards, all(s));
    double ready = stage.free;
    for (const int l : forward ? stage.in : stage.out) {
      const StageLink& link = figures_.links[l];
      const std::vector<double>& arrivals = forward ? links_[l].forward : links_[l].backward;
      const StageFigures& sender = figures_.stages[forward ? link.from : link.to];
      const std::size_t last = at(groups(sender, f, (forward ? stage.forwards : stage.backwards) + 1) - 1);
      if (last >= arrivals.size()) return false;
      ready = std::max(ready, arrivals[last]);
    }
    stage.free = ready + (forward ? f.forward : f.backward);
    ++(forward ? stage.forwards : stage.backwards);
    for (const int l : forward ? stage.out : stage.in) send(figures_.links[l], links_[l], f, forward, stage.free);
    return true;
  }

  static void send(const StageLink& link, LinkTimes& times, const StageFigures& sender, bool forward, double ready) {
    double& free = forward ? times.forward_free : times.backward_free;
    free = std::max(free, ready) + sender.size * (forward ? link.forward : link.backward);
    (forward ? times.forward : times.backward).push_back(free + link.latency);
  }

  const PlanFigures& figures_;
  std::vector<Stage> stages_;
  std::vector<LinkTimes> links_;
};

}  // namespace

double step_seconds(const PlanFigures& figures) {
  return StepPass(figures).run();
}

double step_bound(const PlanFigures& figures, PlanOrder order) {
  struct Times {
    double first_forward = 0;   // may begin
    double first_backward = 0;  // may begin
    double end = 0;             // of the last backward
  };
  const auto& stages = figures.stages;
  std::vector<Times> times(stages.size());
  for (const StageLink& link : figures.links) {  // ascending: what feeds a stage is done
    const StageFigures &x = stages[link.from], &y = stages[link.to];
    Times& to = times[link.to];
    const double arrival = times[link.from].first_forward + groups(x, y) * x.forward + link.forward * x.size + link.latency;
    to.first_forward = std::max(to.first_forward, arrival);
  }
  double bound = 0;
  auto link = figures.links.rbegin();
  for (std::size_t s = stages.size(); s-- > 0;) {
    const StageFigures& x = stages[s];
    Times& time = times[s];
    const int all = figures.microbatches / x.size;
    const int fewest = (order == PlanOrder::any ? x.least : x.ahead) / x.size, most = (order == PlanOrder::any ? x.most : x.ahead) / x.size;
    double last = 0, gradient = 0;  // of the last backward and of the first, which may begin then
    for (; link != figures.links.rend() && link->from == static_cast<int>(s); ++link) {
      const StageFigures& y = stages[link->to];
      const Times& after = times[link->to];
      const double back = link->backward * y.size + link->latency;
      gradient = std::max(gradient, after.first_backward + groups(y, x) * y.backward + back);
      last = std::max(last, after.end + back);
    }
    time.first_backward = std::max(time.first_forward + fewest * x.forward, gradient);
    time.end = std::max(
        {time.first_forward + all * (x.forward + x.backward), gradient + all * x.backward + (all - most) * x.forward, last + x.backward});
    bound = std::max(bound, time.end + x.after_loop());
  }
  return bound;
}

}  // namespace penstock
