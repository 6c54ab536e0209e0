// SPDX-License-Identifier: Apache-2.0
#include "penstock/search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <random>
#include <ranges>
#include <set>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/options.h"
#include "schedule/traits.h"
#include "schedule/transfers.h"
#include "schedule/versions.h"
#include "search/improve.h"
#include "search/judge.h"
#include "search/legs.h"
#include "search/list_schedule.h"
#include "search/order_transfers.h"
#include "search/prove.h"
#include "search/search_classes.h"
#include "search/search_with_memory.h"

namespace penstock {
namespace {

// One placement's state of the search.
struct Ground {
  Legs legs;
  HeadsAndTails ends;
  double bound;
  Ground(const SearchProblem& problem, const Placement& placement) : legs(legs_of(problem, placement)), ends(legs), bound(ends.bound()) {}
};

struct Candidate {
  Rows rows;
  double makespan;
  std::string name;
  std::size_t ground;
};

bool is_chain(const StageShape& shape) {
  const std::vector<bool>& backward = shape.has_backward;
  return !backward.empty() && shape.predecessors == chain(static_cast<int>(backward.size())).predecessors &&
         std::adjacent_find(backward.begin(), backward.end(), std::not_equal_to<>()) == backward.end();
}

// Stages along the actors and back, and so on: both ways cross each link, and a turn needs no transfer.
Placement snake(const SearchProblem& problem) {
  Route route;
  for (std::int32_t s = 0; s < std::ssize(problem.shape.predecessors); ++s) {
    const std::int32_t chunk = s / problem.actors, place = s % problem.actors;
    route.actor_of_stage.push_back(chunk % 2 == 0 ? place : problem.actors - 1 - place);
  }
  for (std::int32_t m = 0; m < problem.microbatches; ++m) route.microbatches.push_back(m);
  return {route};
}

// Whether its kinds of backward are among those that costs are given for.
bool has_costs(const SearchProblem& problem, const Schedule& schedule) {
  for (const auto& row : schedule.actors)
    for (const Action& action : row) {
      if (action.kind == Kind::B && !problem.whole) return false;
      if ((action.kind == Kind::I || action.kind == Kind::W) && !problem.split) return false;
    }
  return true;
}

bool is_too_stale(const SearchProblem& problem, const Schedule& schedule) {
  for (std::int32_t actor = 0; problem.steps > 1 && actor < problem.actors; ++actor)
    if (staleness(schedule, actor) > problem.staleness) return true;
  return false;
}

// No table whose I and W may be on any actor takes less than the mean of all work, or than all forwards of an actor.
double bound_of_moved_halves(const Legs& legs) {
  std::vector<double> forwards(legs.of_actor.size());
  double all = 0;
  for (const StageLeg& leg : legs.legs) {
    const double backward = std::min(leg.input + leg.weight, legs.whole ? leg.whole : kInfinity);
    forwards[at(leg.actor)] += leg.count() * leg.forward;
    all += leg.count() * (leg.forward + (leg.has_backward ? backward : 0));
  }
  return std::max(all / static_cast<double>(forwards.size()), std::ranges::max(forwards));
}

// How the times of actors' stages compare, F, I and W together, by which a window's I and W are placed; nothing where all take as
// long. In a single step they stay at home: what they would send of a stage is not measured.
std::vector<double> balance_of(const SearchProblem& problem) {
  std::vector<double> times;
  if (problem.steps == 1 || !problem.split || std::ssize(problem.costs.stages) != problem.actors) return times;
  for (const StageCosts& stage : problem.costs.stages) {
    double& sum = times.emplace_back();
    for (const Kind kind : {Kind::F, Kind::I, Kind::W}) sum += stage.time[static_cast<std::size_t>(kind)];
  }
  const auto [least, most] = std::ranges::minmax(times);
  if (most <= least * (1 + kRounding) || least <= 0) return {};
  for (double& time : times) time /= least;
  return times;
}

bool is_faster(const FoundTable& a, const FoundTable& b) {
  return a.makespan < b.makespan;
}

// The search for tables of F, I and W alone.
class Search {
 public:
  Search(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), clock_(options.seconds), random_(options.seed) {}

  SearchResult result() {
    tables_ = tables_for(problem_, options_);
    find_grounds();
    for (std::size_t g = 0; g < grounds_.size(); ++g) {
      add_registered(g);
      add_heuristics(g);
    }
    improve_best();
    for (std::size_t g = 0; g < grounds_.size(); ++g) bound_by_proof(g);
    return finish();
  }

 private:
  // The placements in which the work fits.
  void find_grounds() {
    std::vector<Placement> placements = options_.placements;
    if (placements.empty()) {
      for (const RegisteredTable& table : tables_) {
        Placement placement = placement_of(table.schedule);
        if (std::find(placements.begin(), placements.end(), placement) == placements.end()) placements.push_back(std::move(placement));
      }
      const Placement turning = snake(problem_);
      if (!tables_.empty() && std::find(placements.begin(), placements.end(), turning) == placements.end()) placements.push_back(turning);
    }
    if (placements.empty())
      throw Error("no schedule fits these stages and actors",
                  {concat(problem_.shape.predecessors.size(), " stages, ", problem_.actors, " actors")},
                  "the search needs a placement: the stages' number must be a multiple of the actors'");
    double smallest = kInfinity;
    if (problem_.steps > 1) std::erase_if(placements, [](const Placement& placement) { return placement.size() > 1; });
    for (const Placement& placement : placements) {
      const double needed = smallest_limit(problem_, placement);
      smallest = std::min(smallest, needed);
      if (keeps_limit(problem_, needed)) grounds_.emplace_back(problem_, placement), placements_.push_back(placement);
    }
    if (grounds_.empty())
      throw Error(concat("no table keeps a memory limit of ", number(problem_.memory_limit), " activations"),
                  {concat("one micro-batch alone needs ", number(smallest), " on its fullest actor")},
                  concat("the smallest limit that would do is ", number(smallest)));
  }

  void add(Candidate candidate) {
    if (!std::isfinite(candidate.makespan)) return;
    best_ = std::min(best_, candidate.makespan);
    candidates_.push_back(std::move(candidate));
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.makespan < b.makespan; });
    // Equal times are mostly equal tables.
    for (std::size_t i = candidates_.size(); i-- > 1;) {
      if (candidates_[i].makespan <= candidates_[i - 1].makespan * (1 + kRounding))
        candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (candidates_.size() > kMostCandidates) candidates_.pop_back();
  }
  bool is_best_known(std::size_t g) const { return best_ <= grounds_[g].bound * (1 + kRounding); }

  Candidate candidate(std::size_t g, Rows rows, std::string name) {
    PartialRun run(grounds_[g].legs);
    const double makespan =
        rows.empty() || !keep_steps(grounds_[g].legs, rows) ? kInfinity : time_rows(grounds_[g].legs, rows, run).makespan;
    return {std::move(rows), makespan, std::move(name), g};
  }

  // The registered tables of this placement that keep the limit; the fastest of all stays as it is.
  void add_registered(std::size_t g) {
    for (const RegisteredTable& table : tables_) {
      if (placement_of(table.schedule) != placements_[g]) continue;
      const TableTime time = time_of(problem_, table.schedule);
      if (!keeps_limit(problem_, time.peak())) continue;
      std::optional<Rows> rows = rows_of(grounds_[g].legs, table.schedule);
      const bool has_moved = !rows;
      if (rows) add(candidate(g, std::move(*rows), table.title()));
      if (!result_.generator.empty() && time.makespan >= result_.generator_time) continue;
      result_.generator = table.title();
      result_.generator_time = time.makespan;
      generator_ = table.schedule;
      generator_bound_ = has_moved ? bound_of_moved_halves(grounds_[g].legs) : kInfinity;
    }
  }

  void add_heuristics(std::size_t g) {
    const Ground& ground = grounds_[g];
    const double until = kHeuristics * static_cast<double>(g + 1) / static_cast<double>(grounds_.size());
    for (const double warm_up : {0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0})
      for (const double delay : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0})
        add(candidate(g, zero_bubble_rows(ground.legs, warm_up, delay), concat("zero bubble, warm-up ", warm_up, ", delay ", delay)));
    for (const Policy& policy : policies(ground.legs)) {
      if (is_best_known(g) || clock_.is_after(until)) return;
      add(candidate(g, list_schedule(ground.legs, ground.ends, policy), text(policy)));
    }
  }

  // The fastest, and then the best of what that has led to once more: where moves end depends on their order.
  void improve_best() {
    improve_first(kMostCandidates, kHeuristics, kFirstRound);
    improve_first(kOnceMore, kFirstRound, kImprovement);
  }

  // Improves the first `count` candidates, between these parts of the seconds.
  void improve_first(std::size_t count, double from, double to) {
    std::vector<Candidate> starts = candidates_;
    if (starts.size() > count) starts.resize(count);
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const Candidate& start = starts[i];
      const Ground& ground = grounds_[start.ground];
      if (is_best_known(start.ground)) continue;
      const double until = from + (to - from) * static_cast<double>(i + 1) / static_cast<double>(starts.size());
      Improved improved = improve(ground.legs, start.rows, options_.moves, ground.bound, random_, [&] { return clock_.is_after(until); });
      const std::string name = start.name.ends_with(", improved") ? start.name : start.name + ", improved";
      if (improved.makespan < start.makespan) add({std::move(improved.rows), improved.makespan, name, start.ground});
    }
  }

  // Raises the placement's bound: to the best makespan, or, where that cannot be proven, to what can.
  void bound_by_proof(std::size_t g) {
    Ground& ground = grounds_[g];
    if (ground.legs.shared_links) return;  // transfers of several actors' rows wait for each other
    const double until = kImprovement + (1 - kImprovement) * static_cast<double>(g + 1) / static_cast<double>(grounds_.size());
    if (prove_beyond(g, best_, until)) return;
    for (int round = 0; round < kRounds && !is_best_known(g) && !clock_.is_after(until); ++round)
      prove_beyond(g, ground.bound + (best_ - ground.bound) / 2, until);
  }

  // Whether it is now known that nothing takes less than `target`, or something does.
  bool prove_beyond(std::size_t g, double target, double until) {
    Ground& ground = grounds_[g];
    if (is_best_known(g)) return true;
    std::int64_t steps = 0;
    for (const StageLeg& leg : ground.legs.legs) steps += 3 * leg.count();
    // A node takes time proportional to the steps, and there is no hope where there are many.
    const double share = std::min(1.0, 1e4 / static_cast<double>(steps * steps));
    const std::int64_t nodes = static_cast<std::int64_t>(share * static_cast<double>(options_.nodes));
    const Proof proof = prove(ground.legs, ground.ends, target, nodes, [&] { return clock_.is_after(until); });
    result_.nodes += proof.nodes;
    if (!proof.rows.empty()) add({proof.rows, proof.makespan, "branch and bound", g});
    if (proof.complete) ground.bound = std::max(ground.bound, proof.rows.empty() ? target : proof.makespan);
    return proof.complete;
  }

  SearchResult finish() {
    SearchResult& out = result_;
    const bool registered =
        candidates_.empty() || (!out.generator.empty() && out.generator_time <= candidates_[0].makespan * (1 + kRounding));
    invariant(!candidates_.empty() || !out.generator.empty(), "a placement within the limit has a table");
    out.schedule = registered ? generator_ : table_of(candidates_[0]);
    out.found_by = registered ? out.generator : candidates_[0].name;
    find_runners_up();
    out.schedule.name = "searched";
    out.lower_bound = registered ? generator_bound_ : kInfinity;
    for (const Ground& ground : grounds_) out.lower_bound = std::min(out.lower_bound, ground.bound);
    judge(problem_, out);
    invariant(registered || grounds_[candidates_[0].ground].legs.shared_links ||
                  std::abs(out.time.makespan - candidates_[0].makespan) <= kRounding * out.time.makespan,
              "rows and tables take the same time");
    return std::move(out);
  }

  Schedule table_of(const Candidate& candidate) const {
    Schedule schedule = schedule_of(grounds_[candidate.ground].legs, candidate.rows);
    schedule.predecessors = told_predecessors(problem_.shape);
    return problem_.steps > 1 ? with_step_updates(std::move(schedule), problem_.steps) : schedule;
  }

  void find_runners_up() {
    for (const Candidate& other : candidates_) {
      Schedule schedule = table_of(other);
      if (schedule.actors == result_.schedule.actors) continue;
      const double makespan = time_of(problem_, schedule).makespan;
      result_.runners_up.push_back({std::move(schedule), makespan, other.name});
    }
    std::stable_sort(result_.runners_up.begin(), result_.runners_up.end(), is_faster);
  }

  static constexpr std::size_t kMostCandidates = 4, kOnceMore = 2;
  static constexpr double kHeuristics = 0.4, kFirstRound = 0.7, kImprovement = 0.8;  // parts of the seconds by which these end
  static constexpr int kRounds = 4;                                                  // of halving the gap

  const SearchProblem& problem_;
  const SearchOptions& options_;
  SearchClock clock_;
  std::mt19937_64 random_;
  std::vector<RegisteredTable> tables_;
  std::vector<Placement> placements_;
  std::deque<Ground> grounds_;         // of the placements; HeadsAndTails refer to their legs
  std::vector<Candidate> candidates_;  // the fastest first
  double best_ = kInfinity;
  Schedule generator_;
  double generator_bound_ = kInfinity;  // of tables with I or W elsewhere, if it is one
  SearchResult result_;
};

}  // namespace

Placement placement_of(const Schedule& schedule) {
  const std::size_t stages = at(schedule.stages()), microbatches = at(schedule.microbatches());
  std::vector<std::vector<std::int32_t>> actors(microbatches, std::vector<std::int32_t>(stages, 0));
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (const Action& action : schedule.actors[a]) {
      if (action.kind != Kind::F) continue;
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        actors[m][action.stage] = static_cast<std::int32_t>(a);
    }
  Placement placement;
  for (std::size_t m = 0; m < microbatches; ++m) {
    auto route = std::find_if(placement.begin(), placement.end(), [&](const Route& known) { return known.actor_of_stage == actors[m]; });
    if (route == placement.end()) route = placement.insert(placement.end(), Route{actors[m], {}});
    route->microbatches.push_back(static_cast<std::int32_t>(m));
  }
  return placement;
}

int copies_of(const Placement& placement) {
  std::size_t most = 0;
  for (std::size_t stage = 0; !placement.empty() && stage < placement.front().actor_of_stage.size(); ++stage) {
    std::set<std::int32_t> actors;
    for (const Route& route : placement) actors.insert(route.actor_of_stage[stage]);
    most = std::max(most, actors.size());
  }
  return static_cast<int>(most);
}

struct TriedCount {
  std::string flag;
  int ScheduleOptions::* count;
};

// The numbers of micro-batches that schedules take as options. Units are first: of tables that are as fast the first is kept.
std::vector<TriedCount> tried_counts() {
  std::vector<TriedCount> out;
  for (const ScheduleOption& option : schedule_options() | std::views::reverse)
    if (const auto* count = std::get_if<int ScheduleOptions::*>(&option.member); count && !option.is_size && option.unit == "micro-batches")
      out.push_back({option.flag(), *count});
  return out;
}

std::vector<ScheduleOptions> option_sets(const ScheduleInfo& info, const ScheduleOptions& shape) {
  std::vector<ScheduleOptions> out = {shape};
  out.front().balance.clear();
  for (const auto& [flag, member] : tried_counts()) {
    if (!takes(info.name, flag)) continue;
    for (int count = 1; count < 2 * shape.microbatches; count *= 2) {
      out.push_back(out.front());
      out.back().*member = std::min(count, shape.microbatches);
    }
  }
  if (!shape.balance.empty() && takes(info.name, "--balance")) out.push_back(shape);
  return out;
}

std::string RegisteredTable::title() const {
  std::string out = name;
  for (const auto& [flag, member] : tried_counts())
    if (options.*member > 0) out += concat(" ", flag, " ", options.*member);
  if (!options.balance.empty()) out += " --balance " + join(options.balance, ",", [](double time) { return short_decimal(time, 4); });
  return out;
}

std::vector<RegisteredTable> registered_tables(const ScheduleOptions& shape) {
  std::vector<RegisteredTable> out;
  for (const ScheduleInfo& info : schedules()) {
    if (info.orders_slices && shape.slices == 1) continue;
    const std::size_t first = out.size();
    for (const ScheduleOptions& options : option_sets(info, shape)) {
      RegisteredTable table{info.name, options, {}, {}};
      try {
        table.schedule = make_schedule(info.name, options);
        const int stages = shape.actors * shape.chunks + static_cast<int>(shape.frozen.size());
        if (table.schedule.stages() != stages) table.refused = concat("it has ", table.schedule.stages(), " stages, not ", stages);
        if (!table.schedule.predecessors.empty()) table.refused = "its stages are no chain";
      } catch (const Error& error) {
        table.refused = split(error.what(), '\n')[0];
      }
      const bool known = std::any_of(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), [&](const RegisteredTable& other) {
        return other.schedule.actors == table.schedule.actors || !table.refused.empty();
      });
      if (!known) out.push_back(std::move(table));
    }
  }
  return out;
}

std::vector<RegisteredTable> tables_for(const SearchProblem& problem, const SearchOptions& options) {
  const int stages = static_cast<int>(problem.shape.predecessors.size());
  if (!is_chain(problem.shape) || stages % problem.actors != 0) return {};
  std::vector<RegisteredTable> tables = registered_tables({.actors = problem.actors,
                                                           .microbatches = problem.microbatches / problem.steps,
                                                           .window = problem.steps,
                                                           .chunks = stages / problem.actors,
                                                           .forward_only = !problem.shape.has_backward[0],
                                                           .balance = balance_of(problem)});
  std::erase_if(tables, [&](const RegisteredTable& table) {
    if (!table.refused.empty() || !has_costs(problem, table.schedule) || is_too_stale(problem, table.schedule)) return true;
    const Placement placement = placement_of(table.schedule);
    const auto& wanted = options.placements;
    return wanted.empty() ? copies_of(placement) > problem.copies : std::find(wanted.begin(), wanted.end(), placement) == wanted.end();
  });
  return tables;
}

std::vector<FoundTable> tables_within(const SearchProblem& problem, const SearchOptions& options) {
  std::vector<FoundTable> out;
  for (const RegisteredTable& table : tables_for(problem, options)) {
    Schedule schedule = problem.sharded ? with_gathers(table.schedule) : table.schedule;
    const TableTime time = time_of(problem, schedule);
    if (keeps_limit(problem, time.peak())) out.push_back({std::move(schedule), time.makespan, table.title()});
  }
  std::stable_sort(out.begin(), out.end(), is_faster);
  return out;
}

TableTime time_of(const SearchProblem& problem, const Schedule& schedule) {
  return time_table(schedule, problem.shape, problem.costs, {.network = problem.network});
}

void judge(const SearchProblem& problem, SearchResult& result) {
  validate(result.schedule, problem.shape, problem.microbatches);
  result.time = time_of(problem, result.schedule);
  invariant(keeps_limit(problem, result.time.peak()), "a searched table keeps the limit");
  result.inferred_time = time_of(problem, without_transfers(result.schedule)).makespan;
  result.optimal = result.time.makespan <= result.lower_bound * (1 + 2 * kRounding);
  result.lower_bound = std::min(result.lower_bound, result.time.makespan);
}

SearchResult search_schedule(const SearchProblem& problem, const SearchOptions& options) {
  if (problem.microbatches < 1) throw Error("there are no micro-batches");
  invariant(problem.actors > 0 && (problem.whole || problem.split), "there is work to place");
  invariant(problem.costs.stages.size() >= problem.shape.predecessors.size(), "costs of every stage");
  invariant(problem.steps > 0 && problem.microbatches % problem.steps == 0 && problem.staleness >= 0, "steps have as many micro-batches");
  if (counts_memory(problem) && problem.steps > 1)
    throw Error("a table for several steps is searched for its order alone",
                {"recomputation, offloading, gathers and parameters that count in the limit are not known to that search"},
                "leave them out, or take --window 1");
  if (problem.order_transfers) return search_with_transfers(problem, options);
  if (!problem.costs.first.empty()) return search_classes(problem, options);
  return counts_memory(problem) ? search_with_memory(problem, options) : Search(problem, options).result();
}

}  // namespace penstock
