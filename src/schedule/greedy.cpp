#include "schedule/greedy.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/invariant.h"

namespace penstock {
namespace {

struct Ready {
  std::int32_t microbatch, stage;
  auto operator<=>(const Ready&) const = default;
};
using Queue = std::priority_queue<Ready, std::vector<Ready>, std::greater<>>;

struct Worker {
  Queue forwards, backwards;
  int live = 0;
  Kind last = Kind::B;
  int in_a_row = 0;  // of `last`

  // Of what can run, by whose turn it is.
  Kind next(bool forward, bool backward, int turn) const {
    const bool goes_on = in_a_row < turn, wants_backward = last == Kind::B ? goes_on : !goes_on;
    return backward && (wants_backward || !forward) ? Kind::B : Kind::F;
  }
  void ran(Kind kind) {
    in_a_row = kind == last ? in_a_row + 1 : 1;
    last = kind;
    live += kind == Kind::F ? 1 : -1;
  }
};

// At stage * microbatches + micro-batch: the step at whose end it is done.
class Done {
 public:
  Done(int stages, int microbatches) : microbatches_(microbatches), steps_(static_cast<std::size_t>(stages) * microbatches, kNever) {}
  std::int32_t& at(std::int32_t stage, std::int32_t microbatch) {
    return steps_[static_cast<std::size_t>(stage) * microbatches_ + static_cast<std::size_t>(microbatch)];
  }

 private:
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  std::size_t microbatches_;
  std::vector<std::int32_t> steps_;
};

}  // namespace

Schedule oldest_first(const GreedyWork& work) {
  std::vector<Worker> workers(static_cast<std::size_t>(work.actors));
  Schedule schedule;
  schedule.actors.resize(workers.size());
  const auto worker = [&](std::int32_t stage, std::int32_t m) -> Worker& {
    return workers[static_cast<std::size_t>(work.actor_of(stage, m))];
  };
  for (std::int32_t m = 0; m < work.microbatches; ++m) worker(0, m).forwards.push({m, 0});

  std::vector<Action> ran;
  do {
    ran.clear();
    for (std::size_t a = 0; a < workers.size(); ++a) {
      Worker& w = workers[a];
      const bool forward = !w.forwards.empty() && w.live < work.live_limit, backward = !w.backwards.empty();
      if (!forward && !backward) continue;
      const Kind kind = w.next(forward, backward, work.turn);
      Queue& queue = kind == Kind::B ? w.backwards : w.forwards;
      const auto [m, stage] = queue.top();
      queue.pop();
      w.ran(kind);
      ran.push_back({stage, kind, m});
      schedule.actors[a].push_back(ran.back());
    }
    for (const Action& action : ran) {
      const std::int32_t stage = action.stage, m = action.microbatch;
      if (action.kind == Kind::F && stage + 1 < work.stages) worker(stage + 1, m).forwards.push({m, stage + 1});
      if (action.kind == Kind::F && stage + 1 == work.stages) worker(stage, m).backwards.push({m, stage});
      if (action.kind == Kind::B && stage > 0) worker(stage - 1, m).backwards.push({m, stage - 1});
    }
  } while (!ran.empty());
  for (const Worker& w : workers) invariant(w.forwards.empty() && w.live == 0, "the limit lets each micro-batch through");
  return schedule;
}

Schedule fill_weights(const std::vector<std::vector<Action>>& rows, int stages, int microbatches, int live_limit) {
  Done forward(stages, microbatches), backward(stages, microbatches);
  const auto can_run = [&](const Action& action, int live, std::int32_t step) {
    const std::int32_t s = action.stage, m = action.microbatch;
    if (action.kind == Kind::F) return live < live_limit && (s == 0 || forward.at(s - 1, m) < step);
    return forward.at(s, m) < step && (s + 1 == stages || backward.at(s + 1, m) < step);
  };
  struct Progress {
    std::size_t next = 0, next_weight = 0;
    int live = 0;
    std::vector<Action> weights;
  };
  Schedule schedule;
  schedule.actors.resize(rows.size());
  std::vector<Progress> progress(rows.size());
  bool waits = true;  // some actor has work left,
  bool ran = true;    // and some did some of it
  for (std::int32_t step = 0; waits && ran; ++step) {
    waits = ran = false;
    for (std::size_t a = 0; a < rows.size(); ++a) {
      Progress& p = progress[a];
      if (p.next < rows[a].size() && can_run(rows[a][p.next], p.live, step)) {
        const Action& action = rows[a][p.next++];
        (action.kind == Kind::F ? forward : backward).at(action.stage, action.microbatch) = step;
        if (action.kind == Kind::I) p.weights.push_back({action.stage, Kind::W, action.microbatch});
        p.live += action.kind == Kind::F;
        schedule.actors[a].push_back(action);
      } else if (p.next_weight < p.weights.size()) {
        schedule.actors[a].push_back(p.weights[p.next_weight++]);
        --p.live;
      } else {
        waits = waits || p.next < rows[a].size();
        continue;
      }
      waits = ran = true;
    }
  }
  invariant(!waits, "the limit lets each micro-batch through");
  return schedule;
}

Schedule in_whole_units(const ScheduleOptions& options, int unit, const std::function<Schedule(int microbatches)>& make) {
  Schedule schedule = make((options.microbatches + unit - 1) / unit * unit);
  for (auto& row : schedule.actors) std::erase_if(row, [&](const Action& action) { return action.microbatch >= options.microbatches; });
  return schedule;
}

}  // namespace penstock
