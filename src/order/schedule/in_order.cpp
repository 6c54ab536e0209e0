// SPDX-License-Identifier: Apache-2.0
#include "schedule/in_order.h"

#include <algorithm>
#include <deque>

#include "base/invariant.h"
#include "base/numbers.h"

namespace penstock {
namespace {

struct Progress {
  std::vector<std::size_t> next;  // of each list
  std::vector<Action> inputs;     // those that have started
  std::size_t forwards = 0, weights = 0;
};

class InOrderPolicy {
 public:
  InOrderPolicy(const InOrder& order, const EngineWork& work)
      : order_(order), work_(work), ready_(2 * work.shape.predecessors.size() * at(work.microbatches), false) {
    for (const auto& lists : order.lists) actors_.push_back({std::vector<std::size_t>(lists.size(), 0), {}});
  }

  void ready(const Action& action) {
    if (action.kind != Kind::W) ready_[place(action)] = true;
  }
  void ended(std::int32_t, const Action&) {}
  void stuck() const { invariant(false, "the limit lets each micro-batch through"); }

  std::optional<Action> next(std::int32_t a) {
    Progress& actor = actors_[a];
    const auto& lists = order_.lists[a];
    for (std::size_t list = 0; list < lists.size(); ++list) {
      std::size_t& next = actor.next[list];
      if (next == lists[list].size() || !can_run(actor, lists[list][next])) continue;
      const Action& action = lists[list][next++];
      actor.forwards += action.kind == Kind::F;
      if (action.kind == Kind::I) actor.inputs.push_back(action);
      return action;
    }
    if (actor.weights == actor.inputs.size()) return {};
    const Action& input = actor.inputs[actor.weights++];
    return Action{input.stage, Kind::W, input.microbatch};
  }

 private:
  std::size_t place(const Action& action) const {
    return 2 * (at(action.stage) * at(work_.microbatches) + at(action.microbatch)) + (action.kind != Kind::F);
  }
  bool can_run(const Progress& actor, const Action& action) const {
    return ready_[place(action)] && (action.kind != Kind::F || actor.forwards - actor.weights < at(order_.live));
  }

  const InOrder& order_;
  const EngineWork& work_;
  std::vector<bool> ready_;  // at place()
  std::vector<Progress> actors_;
};

class InRowsPolicy {
 public:
  InRowsPolicy(const Schedule& rows, const EngineWork& work, bool (*gives_way)(const Action&))
      : rows_(rows),
        work_(work),
        gives_way_(gives_way),
        next_(rows.actors.size()),
        others_(rows.actors.size()),
        state_(3 * work.shape.predecessors.size() * at(work.microbatches), kOther) {
    for (const std::vector<Action>& row : rows.actors)
      for (const Action& action : row) state_of(action) = kWaits;
  }

  void ready(const Action& action) {
    if (char& state = state_of(action); state == kWaits) {
      state = kReady;
      return;
    }
    // Other actors wait for an I, and for W nobody does.
    std::deque<Action>& others = others_[at(work_.actor_of(action))];
    const auto weight = std::ranges::find(others, Kind::W, &Action::kind);
    others.insert(action.kind == Kind::W ? others.end() : weight, action);
  }
  void ended(std::int32_t, const Action&) {}
  void stuck() const { invariant(false, "rows wait for no more than what can run before them"); }

  std::optional<Action> next(std::int32_t actor) {
    const std::vector<Action>& row = rows_.actors[at(actor)];
    std::deque<Action>& others = others_[at(actor)];
    std::size_t& turn = next_[at(actor)];
    if (turn < row.size() && state_of(row[turn]) == kReady && (others.empty() || !gives_way_(row[turn]))) return row[turn++];
    if (others.empty()) return {};
    const Action action = others.front();
    others.pop_front();
    return action;
  }

 private:
  enum State : char { kOther, kWaits, kReady };  // of the rows' actions, and of all others

  char& state_of(const Action& action) {
    const std::size_t kind = action.kind == Kind::F ? 0 : action.kind == Kind::W ? 2 : 1;
    return state_[3 * (at(action.stage) * at(work_.microbatches) + at(action.microbatch)) + kind];
  }

  const Schedule& rows_;
  const EngineWork& work_;
  bool (*gives_way_)(const Action&);
  std::vector<std::size_t> next_;           // by actor: its next action of its row
  std::vector<std::deque<Action>> others_;  // by actor: that can run
  std::vector<char> state_;
};

}  // namespace

Schedule in_rows(const Schedule& rows, const EngineWork& work, bool (*gives_way)(const Action&)) {
  InRowsPolicy policy(rows, work, gives_way);
  return run_engine(work, policy).schedule;
}

Schedule in_order(const InOrder& order, const EngineWork& work) {
  InOrderPolicy policy(order, work);
  return run_engine(work, policy).schedule;
}

}  // namespace penstock
