#include "schedule/table_time.h"

#include <algorithm>
#include <numeric>

#include "base/invariant.h"
#include "schedule/work.h"

namespace penstock {
namespace {

struct Change {
  double time;
  std::int32_t live;  // added
};

std::int32_t peak(std::vector<Change>& changes) {
  // What ends at a time makes room for what starts then.
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.time != b.time ? a.time < b.time : a.live < b.live; });
  std::int32_t live = 0, most = 0;
  for (const Change& change : changes) most = std::max(most, live += change.live);
  return most;
}

double& at(std::vector<std::vector<double>>& times, Position p) {
  return times[static_cast<std::size_t>(p.actor)][static_cast<std::size_t>(p.index)];
}

std::vector<std::int32_t> peaks(const WorkIndex& work, TableTime& time) {
  std::vector<std::vector<Change>> changes(work.schedule->actors.size());
  for (std::size_t unit = 0; unit < work.forward.size(); ++unit) {
    const Position forward = work.forward[unit], last = work.weight[unit] ? work.weight[unit] : work.backward[unit];
    if (!forward || !last) continue;
    std::vector<Change>& row = changes[static_cast<std::size_t>(forward.actor)];
    row.push_back({at(time.start, forward), 1});
    row.push_back({at(time.end, last), -1});
  }
  std::vector<std::int32_t> out;
  for (auto& row : changes) out.push_back(peak(row));
  return out;
}

}  // namespace

double TableTime::bubble() const {
  const double total = static_cast<double>(busy.size()) * makespan;
  return total > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / total : 0;
}

double cost(const TableCosts& costs, const Action& action) {
  switch (action.kind) {
    case Kind::F:
      return costs.forward * action.count;
    case Kind::B:
      return costs.backward * action.count;
    case Kind::I:
      return costs.input * action.count;
    case Kind::W:
      return costs.weight * action.count;
    default:
      return 0;
  }
}

TableTime time_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs) {
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  TableTime time;
  time.busy.assign(schedule.actors.size(), 0);
  for (const auto& row : schedule.actors) time.end.emplace_back(row.size(), 0.0);
  time.start = time.end;
  const std::vector<std::int32_t> done = walk(work, [&](Position here) {
    const Action& action = work.at(here);
    double start = here.index > 0 ? at(time.end, {here.actor, here.index - 1}) : 0;
    for_each_need(work, action,
                  [&](Position need) { start = std::max(start, at(time.end, need) + (need.actor == here.actor ? 0 : costs.latency)); });
    at(time.start, here) = start;
    at(time.end, here) = start + cost(costs, action);
    time.busy[static_cast<std::size_t>(here.actor)] += cost(costs, action);
    time.makespan = std::max(time.makespan, at(time.end, here));
  });
  for (std::size_t a = 0; a < done.size(); ++a) {
    invariant(done[a] == static_cast<std::int32_t>(schedule.actors[a].size()), "a valid table has no cycle");
  }
  time.peak_live = peaks(work, time);
  return time;
}

}  // namespace penstock
