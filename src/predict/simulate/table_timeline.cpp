// SPDX-License-Identifier: Apache-2.0
// A timed table as a timeline: activities with their causes, and memory in activations.
#include <map>

#include "base/invariant.h"
#include "base/text.h"
#include "schedule/slices.h"
#include "schedule/table_live.h"
#include "simulate/sort_activities.h"

namespace penstock {
namespace {

// Numbers of activities in the order in which they are made: each action, then the transfers that it lets start.
struct Numbering {
  std::vector<std::vector<std::int64_t>> action;
  std::vector<std::int64_t> transfer;
  std::map<std::pair<std::int64_t, std::int32_t>, std::int64_t> sent;  // by the action that made it, and to whom
};

class Drawing {
 public:
  Drawing(const WorkIndex& work, const TableTime& time) : work_(work), time_(time), last_(work.schedule->actors.size()) {
    for (const auto& row : work.schedule->actors) numbers_.action.emplace_back(row.size(), -1);
  }

  std::vector<Activity> activities() {
    for (std::size_t next = 0; const Position here : time_.order) {
      add_action(here);
      for (; next < time_.transfers.size() && number_of(time_.transfers[next].by) >= 0; ++next) add_transfer(time_.transfers[next]);
    }
    sort_by_begin(activities_);
    return std::move(activities_);
  }

 private:
  // The activity of each lane of an actor that was made last, and of the stages' UNSHARD and REDUCE_GRAD; -1: none.
  struct Last {
    std::int64_t compute = -1, copy = -1, collective = -1;
    std::map<std::int32_t, std::int64_t> gathered, reduced;
  };

  std::int64_t& number_of(Position p) { return numbers_.action[p.actor][p.index]; }
  const Activity& made(std::int64_t number) const { return activities_[number]; }

  // The transfer to an actor of what an action makes, which may be named by its send.
  std::int64_t transfer_of(Position from, std::int32_t to) {
    const bool is_named = is_send(work_.at(from).kind);
    return numbers_.sent.at({number_of(is_named ? work_.user_of(work_.at(from)) : from), to});
  }

  void add_action(Position here) {
    const std::size_t actor = static_cast<std::size_t>(here.actor), index = static_cast<std::size_t>(here.index);
    const Action& action = work_.at(here);
    Last& last = last_[actor];
    if (is_transfer(action.kind)) {
      number_of(here) = last.compute;
      return;
    }
    Activity activity;
    activity.begin = time_.start[actor][index];
    activity.end = time_.end[actor][index];
    activity.device = here.actor;
    activity.action = true;
    activity.kind = action.kind;
    activity.stage = action.stage;
    activity.microbatch = action.microbatch;
    activity.item = here.index;
    const auto caused_by = [&](std::int64_t number) {
      if (number >= 0 && (activity.cause < 0 || made(number).end > made(activity.cause).end)) activity.cause = number;
    };
    const bool copy = is_host_copy(action.kind), collective = is_collective(action.kind);
    caused_by(last.compute);
    if (copy) caused_by(last.copy);
    if (collective) caused_by(last.collective);
    if (!copy && !collective) caused_by(waits_for(last, action));
    for_each_need(work_, action, [&](Position need) {
      if (need.actor != here.actor)
        caused_by(transfer_of(need, here.actor));
      else if (!copy)
        caused_by(number_of(need));
    });
    const std::int64_t number = number_of(here) = static_cast<std::int64_t>(activities_.size());
    (copy ? last.copy : collective ? last.collective : last.compute) = number;
    if (collective) (action.kind == Kind::UNSHARD ? last.gathered : last.reduced)[whole_stage(action, *work_.schedule)] = number;
    if (copy || collective) {
      activity.lane = Lane::transfer;
      activity.peer = here.actor;
    }
    activities_.push_back(activity);
  }

  // The collective that its stage waits for in its row; -1: none.
  std::int64_t waits_for(const Last& last, const Action& action) const {
    const auto& collectives = action.kind == Kind::U ? last.reduced : last.gathered;
    const auto found = collectives.find(whole_stage(action, *work_.schedule));
    return found == collectives.end() ? -1 : found->second;
  }

  void add_transfer(const TableTransfer& transfer) {
    Activity activity = made(number_of(transfer.from));
    activity.begin = transfer.begin;
    activity.end = transfer.end;
    activity.peer = transfer.to;
    activity.lane = Lane::transfer;
    activity.cause = transfer.behind >= 0 ? numbers_.transfer[transfer.behind] : number_of(transfer.by);
    activity.bytes = transfer.bytes;
    numbers_.sent[{number_of(transfer.from), transfer.to}] = static_cast<std::int64_t>(activities_.size());
    numbers_.transfer.push_back(static_cast<std::int64_t>(activities_.size()));
    activities_.push_back(activity);
  }

  const WorkIndex& work_;
  const TableTime& time_;
  Numbering numbers_;
  std::vector<Last> last_;  // of each actor
  std::vector<Activity> activities_;
};

std::vector<MemoryPoint> memory_of(const WorkIndex& work, const TableCosts& costs, const TableTime& time, std::int32_t actor,
                                   const std::vector<ForeignEnd>& foreign) {
  std::vector<MemoryPoint> points(1);
  LiveSum activations(costs), parameters(costs), gradients(costs);
  const auto amount = [&](MemoryClass memory) -> double& { return points.back().amount[static_cast<std::size_t>(memory)]; };
  amount(MemoryClass::parameters) = parameters.add_resident(work, actor);
  for_each_live_change(work, time, actor, foreign,
                       [&](double when, Held what, std::int32_t stage, std::int32_t microbatch, std::int32_t count) {
                         if (when != points.back().time) points.push_back({when, points.back().amount});
                         if (what == Held::parameters)
                           amount(MemoryClass::parameters) = parameters.add(what, stage, microbatch, count);
                         else if (what == Held::gradients)
                           amount(MemoryClass::gradients) = gradients.add(what, stage, microbatch, count);
                         else
                           amount(MemoryClass::activations) = activations.add(what, stage, microbatch, count);
                       });
  return points;
}

}  // namespace

Timeline timeline_of(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableTime& time) {
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  Timeline timeline;
  timeline.title = schedule.name;
  timeline.seconds = false;
  timeline.makespan = time.makespan;
  timeline.slices = schedule.slices;
  timeline.blocks = schedule.blocks;
  timeline.activities = Drawing(work, time).activities();
  const std::vector<std::vector<ForeignEnd>> foreign = foreign_ends(work, time);
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    timeline.devices.push_back(concat("actor ", a));
    timeline.memory.push_back(memory_of(work, costs, time, static_cast<std::int32_t>(a), foreign[a]));
  }
  return timeline;
}

}  // namespace penstock
