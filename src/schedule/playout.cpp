#include "schedule/playout.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <queue>

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// An actor's progress: how many of each kind have started, and until when it is at work.
struct Progress {
  std::size_t forwards = 0, inputs = 0, weights = 0;
  double until = 0;
  Kind last = Kind::F;  // of forwards and input gradients
};

class Player {
 public:
  explicit Player(const Playout& playout) : playout_(playout), actors_(playout.forwards.size()), rows_(playout.forwards.size()) {
    std::int32_t microbatches = 0;
    for (const auto& row : playout.forwards)
      for (const Action& action : row) {
        stages_ = std::max(stages_, action.stage + 1);
        microbatches = std::max(microbatches, action.microbatch + 1);
      }
    microbatches_ = static_cast<std::size_t>(microbatches);
    actor_of_.resize(static_cast<std::size_t>(stages_));
    for (std::size_t a = 0; a < actors_.size(); ++a)
      for (const Action& action : playout.forwards[a]) actor_of_[static_cast<std::size_t>(action.stage)] = a;
    forward_end_.assign(static_cast<std::size_t>(stages_) * microbatches_, kNever);
    input_end_ = forward_end_;
  }

  // An actor is asked when it has ended an action and when something arrives; nothing else changes what it can run.
  Schedule play() {
    for (std::size_t a = 0; a < actors_.size(); ++a) moments_.emplace(0, a);
    while (!moments_.empty()) {
      const auto [now, actor] = moments_.top();
      moments_.pop();
      if (now >= actors_[actor].until) run_next(actor, now);
    }
    Schedule schedule;
    schedule.actors = std::move(rows_);
    return schedule;
  }

 private:
  using Moment = std::pair<double, std::size_t>;

  void run_next(std::size_t actor, double now) {
    for (const Kind kind : preference(actor)) {
      if (!can_run(actor, kind, now)) continue;
      start(actor, kind, now);
      return;
    }
  }

  std::array<Kind, 3> preference(std::size_t actor) const {
    const Progress& at = actors_[actor];
    if (playout_.alternate && at.last == Kind::I) return {Kind::F, Kind::I, Kind::W};
    return {Kind::I, Kind::F, Kind::W};
  }

  bool can_run(std::size_t actor, Kind kind, double now) const {
    const Progress& at = actors_[actor];
    if (kind == Kind::W) return at.weights < at.inputs;
    if (kind == Kind::F) {
      const auto& order = playout_.forwards[actor];
      if (at.forwards == order.size() || at.forwards - at.weights >= static_cast<std::size_t>(playout_.live)) return false;
      const Action& next = order[at.forwards];
      return next.stage == 0 || arrival(forward_end_, next.stage - 1, next.microbatch, actor) <= now;
    }
    const auto& order = playout_.inputs[actor];
    if (at.inputs == order.size() || at.forwards < static_cast<std::size_t>(playout_.forwards_before_input[at.inputs])) return false;
    const Action& next = order[at.inputs];
    return next.stage == stages_ - 1 || arrival(input_end_, next.stage + 1, next.microbatch, actor) <= now;
  }

  void start(std::size_t actor, Kind kind, double now) {
    Progress& at = actors_[actor];
    at.until = now + 1;
    moments_.emplace(at.until, actor);
    Action action =
        kind == Kind::F ? playout_.forwards[actor][at.forwards++] : playout_.inputs[actor][kind == Kind::I ? at.inputs++ : at.weights++];
    action.kind = kind;
    rows_[actor].push_back(action);
    if (kind == Kind::W) return;

    at.last = kind;
    const bool forward = kind == Kind::F;
    (forward ? forward_end_ : input_end_)[unit(action.stage, action.microbatch)] = at.until;
    const std::int32_t user = action.stage + (forward ? 1 : -1);
    if (user < 0 || user == stages_) return;
    const std::size_t to = actor_of_[static_cast<std::size_t>(user)];
    moments_.emplace(at.until + transfer(actor, to), to);
  }

  std::size_t unit(std::int32_t stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(stage) * microbatches_ + static_cast<std::size_t>(microbatch);
  }
  double arrival(const std::vector<double>& end, std::int32_t stage, std::int32_t microbatch, std::size_t actor) const {
    return end[unit(stage, microbatch)] + transfer(actor_of_[static_cast<std::size_t>(stage)], actor);
  }
  double transfer(std::size_t a, std::size_t b) const {
    const std::size_t low = std::min(a, b);
    return std::max(a, b) - low == 1 && low < playout_.transfers.size() ? playout_.transfers[low] : 0;
  }

  const Playout& playout_;
  std::vector<Progress> actors_;
  std::vector<std::vector<Action>> rows_;
  std::int32_t stages_ = 0;
  std::size_t microbatches_ = 0;
  std::vector<std::size_t> actor_of_;            // of each stage
  std::vector<double> forward_end_, input_end_;  // at unit(); kNever: has not started
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> moments_;
};

}  // namespace

Schedule play(const Playout& playout) {
  return Player(playout).play();
}

}  // namespace penstock
