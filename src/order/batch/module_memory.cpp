// SPDX-License-Identifier: Apache-2.0
#include "batch/module_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/text.h"
#include "batch/cover.h"
#include "batch/module_jobs.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using ModulePass = std::pair<std::size_t, std::size_t>;  // a segment and its stage

ModulePass pass_of(const ModuleRun& run) {
  return {at(run.segment), at(run.stage)};
}

const ModuleMemory& memory_of(const ModuleProblem& problem, const ModulePass& pass) {
  return problem.memory[pass.first][pass.second];
}

// Between two runs of a rank: passes between F and their backward, and what the others hold, between I and W.
struct HeldPasses {
  std::vector<ModulePass> open;
  double fixed = 0;
};

// Behind each run that leaves a rank holding more, or other things.
std::vector<HeldPasses> held_of(const ModuleProblem& problem, const std::vector<ModuleRun>& rank) {
  std::vector<HeldPasses> out;
  HeldPasses now;
  for (const ModuleRun& run : rank) {
    const ModulePass pass = pass_of(run);
    if (run.kind == Kind::F) now.open.push_back(pass);
    if (run.kind == Kind::B || run.kind == Kind::I) std::erase(now.open, pass);
    if (run.kind == Kind::I) now.fixed += memory_of(problem, pass).full;
    if (run.kind == Kind::W) now.fixed -= memory_of(problem, pass).full;
    if (run.kind == Kind::F || run.kind == Kind::I) out.push_back(now);
  }
  return out;
}

std::vector<double> times_of(const ModuleJobs& jobs) {
  std::vector<double> out;
  for (const ModuleJobs::Segment& segment : jobs.segments) out.push_back(segment.time);
  return out;
}

// Writes the rank's choice into `again`; false: there is none.
bool choose_for(const ModuleProblem& problem, const std::vector<ModuleRun>& rank, const std::vector<double>& times, std::int64_t nodes,
                std::vector<std::vector<int>>& again) {
  std::map<ModulePass, std::size_t> number;
  std::vector<CoverEntry> entries;
  for (const ModuleRun& run : rank) {
    const ModuleMemory& memory = memory_of(problem, pass_of(run));
    if (run.kind != Kind::F) continue;
    number.emplace(pass_of(run), entries.size());
    entries.push_back({.most = memory.layers, .cost = times[at(run.segment)] / std::max(memory.layers, 1)});
  }
  std::vector<CoverSet> sets;
  for (const HeldPasses& held : held_of(problem, rank)) {
    CoverSet& set = sets.emplace_back(CoverSet{.entries = {}, .saved = {}, .over = held.fixed - problem.room});
    for (const ModulePass& pass : held.open) {
      set.entries.push_back(number.at(pass));
      set.saved.push_back(memory_of(problem, pass).saved);
      set.over += memory_of(problem, pass).full;
    }
  }
  const Cover cover = least_cover(std::move(sets), entries, nodes);
  for (const auto& [pass, entry] : number)
    if (cover.feasible) again[pass.first][pass.second] = cover.units[entry];
  return cover.feasible;
}

// As if each backward computed this share of its layers again anyway.
ModuleProblem holding_less(ModuleProblem problem, double share) {
  for (std::vector<ModuleMemory>& of_segment : problem.memory)
    for (ModuleMemory& memory : of_segment) memory.full -= std::floor(share * memory.layers) * memory.saved;
  return problem;
}

// Halves the number of micro-batches at once until an order does not stall.
std::optional<ModuleResult> found_at_once(ModuleProblem problem, const ModuleSearchOptions& options) {
  std::optional<ModuleResult> found = find_modules(problem, options);
  for (int most = static_cast<int>(problem.micro_batches.size()) / 2; !found && most > 0; most /= 2) {
    problem.at_once = most;
    found = find_modules(problem, options);
  }
  return found;
}

}  // namespace

double most_held(const ModuleProblem& problem, const ModuleTable& table) {
  double most = 0;
  for (const std::vector<ModuleRun>& rank : table.ranks)
    for (const HeldPasses& held : held_of(problem, rank)) {
      double sum = held.fixed;
      for (const ModulePass& pass : held.open) {
        const ModuleMemory& memory = memory_of(problem, pass);
        sum += memory.full - (table.again.empty() ? 0 : table.again[pass.first][pass.second] * memory.saved);
      }
      most = std::max(most, sum);
    }
  return most;
}

std::optional<std::vector<std::vector<int>>> layers_again(const ModuleProblem& problem, const ModuleTable& table, std::int64_t nodes) {
  std::vector<std::vector<int>> out;
  for (const std::vector<ModuleMemory>& of_segment : problem.memory) out.emplace_back(of_segment.size(), 0);
  const std::vector<double> times = times_of(ModuleJobs(problem));
  for (const std::vector<ModuleRun>& rank : table.ranks)
    if (!choose_for(problem, rank, times, nodes, out)) return {};
  return out;
}

ModuleTable with_again(const ModuleProblem& problem, const ModuleTable& table, std::vector<std::vector<int>> again) {
  const ModuleJobs jobs(problem, again);
  ModuleState state(jobs);
  ModuleTable out{.makespan = 0, .ranks = std::vector<std::vector<ModuleRun>>(jobs.ranks), .again = std::move(again)};
  for (std::size_t left = jobs.runs(); left > 0;)
    for (std::size_t rank = 0; rank < jobs.ranks; ++rank)
      while (out.ranks[rank].size() < table.ranks[rank].size()) {
        const ModuleRun& next = table.ranks[rank][out.ranks[rank].size()];
        const std::size_t segment = at(next.segment);
        if (next.kind == Kind::W) {
          const auto& weights = state.weights[rank];
          const auto found = std::ranges::find(weights, std::pair(segment, next.stage));
          out.ranks[rank].push_back(state.start_weight(jobs, rank, static_cast<std::size_t>(found - weights.begin())));
        } else {
          const std::size_t step = state.step[segment];
          const bool is_next = step < jobs.steps(segment) && jobs.rank_of(segment, step) == rank &&
                               jobs.forward_of(segment, step) == at(next.stage) &&
                               jobs.is_backward(segment, step) == (next.kind != Kind::F);
          if (!is_next || state.earliest(jobs, segment) == kInfinity) break;
          out.ranks[rank].push_back(state.start(jobs, segment));
        }
        --left;
      }
  out.makespan = state.makespan();
  return out;
}

ModuleResult modules_in_room(const ModuleProblem& problem, const ModuleResult& free, const ModuleSearchOptions& options) {
  constexpr std::int64_t kNodes = 2000;  // of a rank: a plan must not take as long as its step
  if (most_held(problem, free.table) <= problem.room) return free;
  constexpr std::array kShares = {0.0, 0.5, 1.0};
  ModuleSearchOptions fewer = options;  // so that all of these orders together take about as long as the free one
  fewer.rollouts /= std::ssize(kShares);
  std::vector<ModuleTable> orders = {free.table};
  for (const double share : kShares)
    if (std::optional<ModuleResult> found = found_at_once(holding_less(problem, share), fewer)) orders.push_back(std::move(found->table));
  ModuleResult best{.table = {}, .lower_bound = free.lower_bound};
  for (const ModuleTable& order : orders) {
    std::optional<std::vector<std::vector<int>>> again = layers_again(problem, order, kNodes);
    if (!again) continue;
    ModuleTable table = with_again(problem, order, *std::move(again));
    if (table.makespan < best.table.makespan) best.table = std::move(table);
  }
  if (best.table.makespan == kInfinity)
    throw Error(concat("no table keeps a room of ", number(problem.room), " on a rank"),
                {concat("the fastest without that limit holds ", number(std::ceil(most_held(problem, free.table))))},
                "give more room: a higher batch.memory_limit, or batch.recompute = \"inputs\"");
  best.proven = best.table.makespan <= best.lower_bound;
  return best;
}

}  // namespace penstock
