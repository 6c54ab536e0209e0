#include "batch/checkpoint_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "batch/chunk_schedule.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Entries of which at least `need` layers are recomputed together.
struct LiveSet {
  std::vector<std::size_t> entries;
  int need = 0;
};

// Returns the entries of the plan that live together on a stage at the end of each run of forwards; at other times fewer do.
std::vector<LiveSet> live_sets(const CheckpointProblem& problem, const std::vector<int>& chunks) {
  const Schedule schedule = chunk_schedule(problem.actors, chunks);
  std::set<std::vector<std::size_t>> sets;
  for (std::size_t stage = 0; stage < schedule.actors.size(); ++stage) {
    const std::vector<Action>& row = schedule.actors[stage];
    std::vector<std::size_t> entry(row.size() / 2);  // by chunk
    std::size_t next = schedule.actors.size() - 1 - stage;
    for (const Action& action : row)
      if (action.kind == Kind::B) entry[at(action.microbatch)] = next++;
    std::set<std::size_t> live;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind == Kind::B) {
        live.erase(entry[at(row[i].microbatch)]);
      } else {
        live.insert(entry[at(row[i].microbatch)]);
        if (row[i + 1].kind == Kind::B) sets.emplace(live.begin(), live.end());
      }
    }
  }
  std::vector<LiveSet> out;
  for (const auto& set : sets) {
    const double over = static_cast<double>(set.size()) * problem.full - problem.room;
    if (over <= 0) continue;
    constexpr double kImpossible = 1e9;  // above what any stage recomputes
    out.push_back({set, static_cast<int>(problem.saved > 0 ? std::min(std::ceil(over / problem.saved - 1e-9), kImpossible) : kImpossible)});
  }
  return out;
}

// The least numbers of layers, `most` per entry at most, that give every set what it needs.
class CoverSearch {
 public:
  CoverSearch(const std::vector<LiveSet>& sets, std::size_t entries, int most, std::int64_t nodes)
      : sets_(sets), most_(most), nodes_left_(nodes), value_(entries, 0), fixed_(entries, false) {
    for (const LiveSet& set : sets) dense_.push_back(&set);
    const auto density = [](const LiveSet* set) { return static_cast<double>(set->need) / static_cast<double>(set->entries.size()); };
    std::stable_sort(dense_.begin(), dense_.end(), [&](const LiveSet* a, const LiveSet* b) { return density(a) > density(b); });
  }

  CheckpointPlan run() {
    fill_from_behind();
    if (best_.feasible) branch(0);
    best_.proven = nodes_left_ >= 0;
    return best_;
  }

 private:
  int missing(const LiveSet& set) const {
    int sum = set.need;
    for (const std::size_t entry : set.entries) sum -= value_[entry];
    return sum;
  }
  int possible(const LiveSet& set) const {
    int sum = 0;
    for (const std::size_t entry : set.entries) sum += fixed_[entry] ? 0 : most_ - value_[entry];
    return sum;
  }

  void keep(int total) { best_ = {.feasible = true, .total = total, .per_chunk = value_, .proven = false}; }

  // Set by set, gives what is missing to its last entries: they are in the most of the sets that come.
  void fill_from_behind() {
    for (const LiveSet& set : sets_) {
      int left = missing(set);
      for (std::size_t i = set.entries.size(); i-- > 0 && left > 0;) {
        int& value = value_[set.entries[i]];
        const int more = std::min(left, most_ - value);
        value += more;
        left -= more;
      }
      if (left > 0) return;
    }
    keep(std::accumulate(value_.begin(), value_.end(), 0));
    std::fill(value_.begin(), value_.end(), 0);
  }

  // Returns a lower bound on what must be added: the sum of what sets that share no open entry miss.
  int least_more() const {
    std::vector<bool> taken(value_.size(), false);
    int sum = 0;
    for (const LiveSet* set : dense_) {
      const int left = missing(*set);
      if (left <= 0 || std::any_of(set->entries.begin(), set->entries.end(), [&](std::size_t e) { return taken[e]; })) continue;
      for (const std::size_t entry : set->entries) taken[entry] = !fixed_[entry];
      sum += left;
    }
    return sum;
  }

  // Fixes one entry of a set that misses something at every value.
  void branch(int total) {
    if (--nodes_left_ < 0 || total + least_more() >= best_.total) return;
    const LiveSet* tightest = nullptr;
    int least_slack = 0;
    for (const LiveSet& set : sets_) {
      const int left = missing(set), slack = possible(set) - left;
      if (left <= 0) continue;
      if (slack < 0) return;
      if (tightest == nullptr || slack < least_slack) {
        tightest = &set;
        least_slack = slack;
      }
    }
    if (tightest == nullptr) return keep(total);
    const auto open = std::find_if(tightest->entries.rbegin(), tightest->entries.rend(), [&](std::size_t e) { return !fixed_[e]; });
    const std::size_t entry = *open;
    fixed_[entry] = true;
    for (int value = std::min(most_, missing(*tightest)); value >= 0; --value) {
      value_[entry] = value;
      branch(total + value);
    }
    fixed_[entry] = false;
  }

  const std::vector<LiveSet>& sets_;
  std::vector<const LiveSet*> dense_;  // those that need the most per entry first
  int most_ = 0;
  std::int64_t nodes_left_ = 0;
  std::vector<int> value_;
  std::vector<bool> fixed_;
  CheckpointPlan best_;
};

}  // namespace

CheckpointPlan plan_checkpoints(const CheckpointProblem& problem, const std::vector<int>& chunks) {
  if (problem.layers % problem.actors != 0)
    throw Error(concat(problem.layers, " layers do not divide into ", problem.actors, " equal stages"));
  const std::vector<LiveSet> sets = live_sets(problem, chunks);
  const int count = std::accumulate(chunks.begin(), chunks.end(), 0);
  return CoverSearch(sets, at(count + problem.actors - 1), problem.layers / problem.actors, problem.nodes).run();
}

CheckpointGroups group_by_chunks(const CheckpointProblem& problem, std::vector<int> chunks, double delay) {
  std::sort(chunks.begin(), chunks.end());
  std::vector<std::size_t> ends = {0};  // a group ends only where the number of chunks changes
  for (std::size_t i = 1; i <= chunks.size(); ++i)
    if (i == chunks.size() || chunks[i] != chunks[i - 1]) ends.push_back(i);
  // best[j]: of the sequences before ends[j].
  std::vector<CheckpointGroups> best(ends.size(), {.time = kInfinity, .groups = {}});
  best[0].time = 0;
  for (std::size_t j = 1; j < ends.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      std::vector<int> group(chunks.begin() + static_cast<std::ptrdiff_t>(ends[i]), chunks.begin() + static_cast<std::ptrdiff_t>(ends[j]));
      std::reverse(group.begin(), group.end());
      if (best[i].time + delay >= best[j].time) continue;
      CheckpointPlan plan = plan_checkpoints(problem, group);
      const double time = best[i].time + delay + plan.total;
      if (!plan.feasible || time >= best[j].time) continue;
      best[j] = best[i];
      best[j].time = time;
      best[j].groups.push_back({std::move(group), std::move(plan)});
    }
  }
  return best.back();
}

}  // namespace penstock
