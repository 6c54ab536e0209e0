#include "batch/checkpoint_plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "batch/chunk_schedule.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kRounding = 1e-9;  // of a layer, that sums of memory may be off

// Entries whose chunks live together on a stage, with what a layer of each saves and what all have to save. The unit is what a layer of the
// chunk saves that saves most, so that no fewer layers do than are missing.
struct LiveSet {
  std::vector<std::size_t> entries;
  std::vector<double> saved;
  double over = 0;

  auto operator<=>(const LiveSet&) const = default;
};

// `live`: chunks by their entry.
LiveSet live_set(const CheckpointProblem& problem, const std::map<std::size_t, std::size_t>& live) {
  LiveSet out{.over = -problem.room};
  double most = 0;
  for (const auto& [entry, chunk] : live) {
    const ChunkMemory& memory = problem.memory[chunk];
    out.entries.push_back(entry);
    out.saved.push_back(memory.saved);
    out.over += memory.full;
    most = std::max(most, memory.saved);
  }
  if (most <= 0) {
    out.over = out.over > 0 ? kInfinity : 0;
    return out;
  }
  for (double& saved : out.saved) saved /= most;
  out.over /= most;
  return out;
}

// Returns the sets that are above the room, of the ends of all runs of forwards; at other times fewer live.
std::vector<LiveSet> live_sets(const CheckpointProblem& problem, const std::vector<int>& chunks) {
  const Schedule schedule = chunk_schedule(problem.actors, chunks);
  std::set<LiveSet> sets;
  for (std::size_t stage = 0; stage < schedule.actors.size(); ++stage) {
    const std::vector<Action>& row = schedule.actors[stage];
    std::vector<std::size_t> entry(row.size() / 2);  // by chunk
    std::size_t next = schedule.actors.size() - 1 - stage;
    for (const Action& action : row)
      if (action.kind == Kind::B) entry[at(action.microbatch)] = next++;
    std::map<std::size_t, std::size_t> live;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t chunk = at(row[i].microbatch);
      if (row[i].kind == Kind::B) {
        live.erase(entry[chunk]);
      } else {
        live[entry[chunk]] = chunk;
        if (row[i + 1].kind == Kind::B) sets.insert(live_set(problem, live));
      }
    }
  }
  std::vector<LiveSet> out;
  std::ranges::copy_if(sets, std::back_inserter(out), [](const LiveSet& set) { return set.over > kRounding; });
  return out;
}

// The least numbers of layers, `most` per entry at most, that save in every set what is over.
class CoverSearch {
 public:
  CoverSearch(const std::vector<LiveSet>& sets, std::size_t entries, int most, std::int64_t nodes)
      : sets_(sets), most_(most), nodes_left_(nodes), value_(entries, 0), fixed_(entries, false) {
    for (const LiveSet& set : sets) dense_.push_back(&set);
    const auto density = [](const LiveSet* set) { return set->over / static_cast<double>(set->entries.size()); };
    std::stable_sort(dense_.begin(), dense_.end(), [&](const LiveSet* a, const LiveSet* b) { return density(a) > density(b); });
  }

  CheckpointPlan run() {
    fill_from_behind();
    if (best_.feasible) branch(0);
    best_.proven = nodes_left_ >= 0;
    return best_;
  }

 private:
  double missing(const LiveSet& set) const {
    double sum = set.over;
    for (std::size_t i = 0; i < set.entries.size(); ++i) sum -= set.saved[i] * value_[set.entries[i]];
    return sum > kRounding ? sum : 0;
  }
  double possible(const LiveSet& set) const {
    double sum = 0;
    for (std::size_t i = 0; i < set.entries.size(); ++i)
      if (const std::size_t entry = set.entries[i]; !fixed_[entry]) sum += set.saved[i] * (most_ - value_[entry]);
    return sum;
  }
  // The layers of an entry by which the set misses nothing more, or all that it may still have.
  int layers_for(const LiveSet& set, std::size_t i) const {
    const int left = most_ - value_[set.entries[i]];
    const double wanted = missing(set) / set.saved[i];
    return wanted < left ? static_cast<int>(std::ceil(wanted - kRounding)) : left;
  }
  // More layers of the entry help no set.
  int most_useful(std::size_t entry) const {
    int most = 0;
    for (const LiveSet& set : sets_)
      if (const auto found = std::ranges::find(set.entries, entry); found != set.entries.end() && missing(set) > 0) {
        const auto i = static_cast<std::size_t>(found - set.entries.begin());
        if (set.saved[i] > 0) most = std::max(most, layers_for(set, i));
      }
    return most;
  }

  void keep(int total) { best_ = {.feasible = true, .total = total, .per_chunk = value_, .proven = false}; }

  // Set by set, gives what is missing to its last entries: they are in the most of the sets that come.
  void fill_from_behind() {
    for (const LiveSet& set : sets_) {
      for (std::size_t i = set.entries.size(); i-- > 0 && missing(set) > 0;)
        if (set.saved[i] > 0) value_[set.entries[i]] += layers_for(set, i);
      if (missing(set) > 0) return;
    }
    keep(std::accumulate(value_.begin(), value_.end(), 0));
    std::fill(value_.begin(), value_.end(), 0);
  }

  // Returns a lower bound on what must be added: the sum of what sets that share no open entry miss.
  int least_more() const {
    std::vector<bool> taken(value_.size(), false);
    int sum = 0;
    for (const LiveSet* set : dense_) {
      const double left = missing(*set);
      if (left <= 0 || std::any_of(set->entries.begin(), set->entries.end(), [&](std::size_t e) { return taken[e]; })) continue;
      for (const std::size_t entry : set->entries) taken[entry] = !fixed_[entry];
      sum += static_cast<int>(std::ceil(left - kRounding));
    }
    return sum;
  }

  // Fixes one entry of a set that misses something at every value.
  void branch(int total) {
    if (--nodes_left_ < 0 || total + least_more() >= best_.total) return;
    const LiveSet* tightest = nullptr;
    double least_slack = 0;
    for (const LiveSet& set : sets_) {
      const double left = missing(set), slack = possible(set) - left;
      if (left <= 0) continue;
      if (slack < -kRounding) return;
      if (tightest == nullptr || slack < least_slack) {
        tightest = &set;
        least_slack = slack;
      }
    }
    if (tightest == nullptr) return keep(total);
    std::size_t i = tightest->entries.size() - 1;
    while (fixed_[tightest->entries[i]] || tightest->saved[i] <= 0) --i;
    const std::size_t entry = tightest->entries[i];
    const int most = most_useful(entry);
    fixed_[entry] = true;
    for (int value = most; value >= 0; --value) {
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
  const int of_stage = problem.layers / problem.actors, count = std::accumulate(chunks.begin(), chunks.end(), 0);
  for (std::size_t c = 0; c < problem.memory.size(); ++c)
    if (const auto& [full, saved] = problem.memory[c]; saved * of_stage > full * (1 + kRounding))
      throw Error(concat("chunk ", c, " has ", number(full), " on a stage, and its ", counted(of_stage, "layer"), " save ",
                         number(saved * of_stage)),
                  {}, "give what one layer saves, and of a chunk all that it has");
  const std::vector<LiveSet> sets = live_sets(problem, chunks);
  return CoverSearch(sets, at(count + problem.actors - 1), of_stage, problem.nodes).run();
}

namespace {

// By sequence, the number of its first chunk.
std::vector<std::size_t> first_chunks(const std::vector<int>& chunks) {
  std::vector<std::size_t> out;
  for (std::size_t first = 0; const int of_sequence : chunks) {
    out.push_back(first);
    first += at(of_sequence);
  }
  return out;
}

CheckpointPlan plan_of_group(CheckpointProblem problem, const std::vector<int>& chunks, const std::vector<std::size_t>& sequences) {
  const std::vector<std::size_t> first = first_chunks(chunks);
  const std::vector<ChunkMemory> all = std::exchange(problem.memory, {});
  std::vector<int> of_group;
  for (const std::size_t s : sequences) {
    of_group.push_back(chunks[s]);
    for (std::size_t c = 0; c < at(chunks[s]); ++c) problem.memory.push_back(all[first[s] + c]);
  }
  return plan_checkpoints(problem, of_group);
}

}  // namespace

CheckpointGroups group_by_chunks(const CheckpointProblem& problem, const std::vector<int>& chunks, double delay) {
  std::vector<std::size_t> order(chunks.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t s) { return chunks[s]; });
  std::vector<std::size_t> ends = {0};  // a group ends only where the number of chunks changes
  for (std::size_t i = 1; i <= order.size(); ++i)
    if (i == order.size() || chunks[order[i]] != chunks[order[i - 1]]) ends.push_back(i);
  // best[j]: of the sequences before ends[j].
  std::vector<CheckpointGroups> best(ends.size(), {.time = kInfinity, .groups = {}});
  best[0].time = 0;
  for (std::size_t j = 1; j < ends.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      if (best[i].time + delay >= best[j].time) continue;
      std::vector<std::size_t> group(order.begin() + static_cast<std::ptrdiff_t>(ends[i]),
                                     order.begin() + static_cast<std::ptrdiff_t>(ends[j]));
      std::ranges::reverse(group);
      CheckpointPlan plan = plan_of_group(problem, chunks, group);
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
