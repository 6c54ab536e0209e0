#include "schedule/in_order.h"

#include "base/invariant.h"
#include "base/numbers.h"

namespace penstock {
namespace {

struct Progress {
  std::vector<std::size_t> next;  // of each list
  std::size_t last_list = 0;
  std::vector<Action> inputs;  // those that have started
  std::size_t forwards = 0, weights = 0;
};

class InOrderPolicy {
 public:
  InOrderPolicy(const InOrder& order, const EngineWork& work)
      : order_(order), work_(work), ready_(2 * work.shape.predecessors.size() * at(work.microbatches), false) {
    for (const auto& lists : order.lists) actors_.push_back({std::vector<std::size_t>(lists.size(), 0), lists.size(), {}});
  }

  void ready(const Action& action) {
    if (action.kind != Kind::W) ready_[place(action)] = true;
  }
  void ended(std::int32_t, const Action&) {}
  void stuck() const { invariant(false, "the limit lets each micro-batch through"); }

  std::optional<Action> next(std::int32_t a) {
    Progress& actor = actors_[a];
    const auto& lists = order_.lists[a];
    const std::size_t first = order_.alternate && actor.last_list == 0 ? 1 : 0;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      const std::size_t list = (first + i) % lists.size();
      std::size_t& next = actor.next[list];
      if (next == lists[list].size() || !can_run(actor, lists[list][next])) continue;
      const Action& action = lists[list][next++];
      actor.last_list = list;
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
    if (!ready_[place(action)]) return false;
    if (action.kind == Kind::F) return actor.forwards - actor.weights < at(order_.live);
    const std::vector<std::int32_t>& before = order_.forwards_before_input;
    return before.empty() || actor.forwards >= at(before[actor.inputs.size()]);
  }

  const InOrder& order_;
  const EngineWork& work_;
  std::vector<bool> ready_;  // at place()
  std::vector<Progress> actors_;
};

}  // namespace

Schedule in_order(const InOrder& order, const EngineWork& work) {
  InOrderPolicy policy(order, work);
  return run_engine(work, policy).schedule;
}

}  // namespace penstock
