// SPDX-License-Identifier: Apache-2.0
#include "batch/modules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>

#include "base/numbers.h"
#include "base/text.h"
#include "batch/module_jobs.h"
#include "batch/module_list.h"
#include "penstock/error.h"
#include "search/anneal.h"

namespace penstock {
namespace {

// A step of a segment that a rank could run next.
struct ModuleChoice {
  double begin = kInfinity, ready = kInfinity;
  std::size_t place = 0;  // in the order of segments
  std::size_t segment = 0;

  bool operator<(const ModuleChoice& other) const { return std::tie(begin, place) < std::tie(other.begin, other.place); }
  bool any() const { return begin < kInfinity; }
};

// The place of each segment: by its item, and inside of an item by its number.
std::vector<std::size_t> places_in(const ModuleJobs& jobs, const std::vector<ModuleItem>& order) {
  std::vector<std::size_t> places(jobs.segments.size());
  std::size_t next = 0;
  for (const ModuleItem& item : order) {
    const std::size_t m = at(item.micro_batch);
    if (item.backbone) places[jobs.backbones[m]] = next++;
    if (!item.backbone)
      for (const std::size_t part : jobs.parts[m]) places[part] = next++;
  }
  return places;
}

// By rank: what it prefers of the forwards and backwards that it could run.
std::vector<ModuleChoice> choices_of(const ModuleJobs& jobs, const ModuleState& state, const std::vector<std::size_t>& places) {
  std::vector<ModuleChoice> forward(jobs.ranks), backward(jobs.ranks);
  for (std::size_t s = 0; s < jobs.segments.size(); ++s) {
    const double begin = state.earliest(jobs, s);
    const bool is_backward = jobs.is_backward(s, state.step[s]);
    if (begin == kInfinity || (!is_backward && !state.has_room(jobs, s))) continue;
    const std::size_t rank = jobs.rank_of(s, state.step[s]);
    ModuleChoice& best = (is_backward ? backward : forward)[rank];
    best = std::min(best, {begin, state.ready[s], places[s], s});
  }
  for (std::size_t rank = 0; rank < jobs.ranks; ++rank) {
    const ModuleChoice &f = forward[rank], &b = backward[rank];
    const bool both_waited = f.any() && b.any() && std::max(f.ready, b.ready) <= state.free[rank];
    const bool takes_backward = both_waited ? !state.last_backward[rank] : b.any() && b.begin <= f.begin;
    if (takes_backward) forward[rank] = b;
  }
  return forward;
}

ModuleTable interleave(const ModuleJobs& jobs, const std::vector<ModuleItem>& order) {
  const std::vector<std::size_t> places = places_in(jobs, order);
  ModuleState state(jobs);
  ModuleTable table{.makespan = 0, .ranks = std::vector<std::vector<ModuleRun>>(jobs.ranks)};
  for (std::size_t left = jobs.runs(); left > 0; --left) {
    const std::vector<ModuleChoice> choices = choices_of(jobs, state, places);
    const auto next = std::min_element(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    if (!next->any()) return {};
    const auto rank = static_cast<std::size_t>(next - choices.begin());
    table.ranks[rank].push_back(state.start(jobs, next->segment));
  }
  table.makespan = state.makespan();
  return table;
}

// Goes through all active tables, one of which is fastest.
class ModuleProof {
 public:
  ModuleProof(const ModuleJobs& jobs, ModuleTable best, std::int64_t nodes) : jobs_(jobs), best_(std::move(best)), nodes_left_(nodes) {
    now_.ranks.resize(jobs.ranks);
  }

  // Whether nothing is left to try.
  bool run() {
    branch(ModuleState(jobs_));
    return nodes_left_ >= 0;
  }
  ModuleTable& best() { return best_; }

 private:
  void branch(const ModuleState& state) {
    if (--nodes_left_ < 0 || state.bound(jobs_) >= best_.makespan) return;
    std::vector<std::size_t> tried = conflict_of(jobs_, state).segments;
    std::stable_sort(tried.begin(), tried.end(),
                     [&](std::size_t a, std::size_t b) { return state.earliest(jobs_, a) < state.earliest(jobs_, b); });
    if (tried.empty()) {
      now_.makespan = state.makespan();
      best_ = now_;
    }
    for (const std::size_t segment : tried) {
      std::vector<ModuleRun>& row = now_.ranks[jobs_.rank_of(segment, state.step[segment])];
      ModuleState next = state;
      row.push_back(next.start(jobs_, segment));
      branch(next);
      row.pop_back();
    }
  }

  const ModuleJobs& jobs_;
  ModuleTable best_, now_;
  std::int64_t nodes_left_ = 0;
};

std::vector<ModuleItem> items_of(const ModuleJobs& jobs) {
  std::vector<ModuleItem> items;
  for (std::size_t m = 0; m < jobs.parts.size(); ++m) {
    if (!jobs.parts[m].empty()) items.push_back({static_cast<std::int32_t>(m), false});
    items.push_back({static_cast<std::int32_t>(m), true});
  }
  return items;
}

// Whether every micro-batch's parts stand ahead of its backbone: other orders are the same as one of these.
bool parts_first(const std::vector<ModuleItem>& order) {
  std::vector<bool> passed(order.size(), false);
  return std::all_of(order.begin(), order.end(), [&](const ModuleItem& item) {
    if (item.backbone) passed[at(item.micro_batch)] = true;
    return item.backbone || !passed[at(item.micro_batch)];
  });
}

ModuleTable best_of_all_orders(const ModuleJobs& jobs) {
  std::vector<ModuleItem> order = items_of(jobs);
  ModuleTable best;
  do {
    if (!parts_first(order)) continue;
    if (ModuleTable table = interleave(jobs, order); table.makespan < best.makespan) best = std::move(table);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// Moves one element elsewhere at a time, as long as late acceptance lets it stay; returns the best table of all.
template <class Element, class Make>
ModuleTable best_of_moves(std::vector<Element> order, const Make& make, const ModuleSearchOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<Element> tried;
  ModuleTable best = make(order), table;
  const auto change = [&](double) -> std::optional<double> {
    const std::size_t from = random() % order.size(), to = random() % order.size();
    tried = order;
    move_element(tried, from, to);
    table = make(tried);
    return table.makespan;
  };
  const auto settle = [&](double makespan, bool stays) {
    if (stays) order = tried;
    if (makespan < best.makespan) best = table;
  };
  anneal(options.rollouts, LateAcceptance(best.makespan), [](std::int64_t) { return true; }, change, settle);
  return best;
}

// The fastest table that DIP's rule makes of the orders of items that are tried.
ModuleTable best_by_rule(const ModuleJobs& jobs, const ModuleSearchOptions& options) {
  constexpr std::size_t kAll = 8;  // items: 2,520 orders where every micro-batch has parts
  const std::vector<ModuleItem> items = items_of(jobs);
  if (items.size() <= kAll) return best_of_all_orders(jobs);
  return best_of_moves(items, [&](const std::vector<ModuleItem>& order) { return interleave(jobs, order); }, options);
}

}  // namespace

std::int64_t part_size(const std::vector<std::int64_t>& sizes, const std::vector<double>& throughputs) {
  constexpr double kEnough = 0.95;
  const double best = *std::max_element(throughputs.begin(), throughputs.end());
  const auto enough = std::find_if(throughputs.begin(), throughputs.end(), [&](double t) { return t >= kEnough * best; });
  return sizes[static_cast<std::size_t>(enough - throughputs.begin())];
}

std::vector<std::int64_t> even_parts(std::int64_t samples, std::int64_t most) {
  const std::int64_t count = (samples + most - 1) / most;
  std::vector<std::int64_t> parts;
  for (std::int64_t i = 0; i < count; ++i) parts.push_back(samples / count + (i < samples % count ? 1 : 0));
  return parts;
}

std::vector<std::int64_t> segment_counts(const std::vector<double>& times) {
  const double least = *std::min_element(times.begin(), times.end());
  std::vector<std::int64_t> counts;
  for (const double time : times) counts.push_back(static_cast<std::int64_t>(std::floor(time / least)));
  return counts;
}

ModuleTable interleave_modules(const ModuleProblem& problem, const std::vector<ModuleItem>& order) {
  return interleave(ModuleJobs(problem), order);
}

// Before its first backbone's forward a rank has nothing but forwards of parts, and of those no more than the rank before it had done ahead
// of its own first backbone, which came a backbone's forward earlier. So from rank to rank the idle time at the begin grows by the least of
// these; that at the end, in the same way, by the least backbone's backward. W may run there, and where
// rounds go both ways all this says nothing.
double modules_bound(const ModuleProblem& problem) {
  const ModuleJobs jobs(problem);
  double work = 0, least = kInfinity;
  for (const auto& segment : jobs.segments) {
    work += 3 * segment.time * static_cast<double>(segment.rounds);
    if (segment.backbone) least = std::min(least, (problem.split ? 1 : 3) * segment.time);
  }
  if (problem.folded) return ModuleState(jobs).bound(jobs);
  return std::max(ModuleState(jobs).bound(jobs), work + static_cast<double>(jobs.ranks - 1) * least);
}

std::optional<ModuleResult> find_modules(const ModuleProblem& problem, const ModuleSearchOptions& options) {
  ModuleProblem whole = problem;
  whole.split = false;
  const ModuleJobs jobs(problem);
  ModuleTable best = best_by_rule(ModuleJobs(whole), options);
  if (best.makespan == kInfinity) return {};
  const double bound = modules_bound(problem);
  if (problem.split || best.makespan > bound) {
    const auto by_list = [&](const std::vector<std::size_t>& order) { return list_modules(jobs, order); };
    ModuleTable listed = best_of_moves(order_in(jobs, best), by_list, options);
    if (problem.split || listed.makespan < best.makespan) best = std::move(listed);
  }
  if (best.makespan == kInfinity) return {};
  bool proven = best.makespan <= bound;
  if (!proven && !jobs.is_limited() && !problem.split) {
    ModuleProof proof(jobs, std::move(best), options.nodes);
    proven = proof.run();
    best = std::move(proof.best());
  }
  return ModuleResult{std::move(best), proven ? best.makespan : bound, proven};
}

ModuleResult search_modules(const ModuleProblem& problem, const ModuleSearchOptions& options) {
  if (problem.micro_batches.empty()) throw Error("there are no micro-batches");
  if (std::optional<ModuleResult> found = find_modules(problem, options)) return *std::move(found);
  throw Error(concat("every order tried stalls: a rank may hold ", problem.most_live, " segments, and they wait for others"), {},
              concat("allow more segments", problem.split ? ", or whole backwards" : ""));
}

}  // namespace penstock
