// SPDX-License-Identifier: Apache-2.0
#include "batch/checkpoint_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "batch/chunk_schedule.h"
#include "batch/cover.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kRounding = 1e-9;  // of what a chunk has

// Entries whose chunks live together on a stage. `live`: chunks by their entry.
CoverSet live_set(const CheckpointProblem& problem, const std::map<std::size_t, std::size_t>& live) {
  CoverSet out{.entries = {}, .saved = {}, .over = -problem.room};
  for (const auto& [entry, chunk] : live) {
    out.entries.push_back(entry);
    out.saved.push_back(problem.memory[chunk].saved);
    out.over += problem.memory[chunk].full;
  }
  return out;
}

// Returns the sets of the ends of all runs of forwards; at other times fewer live.
std::vector<CoverSet> live_sets(const CheckpointProblem& problem, const std::vector<int>& chunks) {
  const Schedule schedule = chunk_schedule(problem.actors, chunks);
  std::vector<CoverSet> out;
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
        if (row[i + 1].kind == Kind::B) out.push_back(live_set(problem, live));
      }
    }
  }
  return out;
}

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
  const std::vector<CoverEntry> entries(at(count + problem.actors - 1), {.most = of_stage});
  Cover found = least_cover(live_sets(problem, chunks), entries, problem.nodes);
  return {found.feasible, static_cast<int>(std::lround(found.cost)), std::move(found.units), found.proven};
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
