// SPDX-License-Identifier: Apache-2.0
#include "search/search_with_memory.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/traits.h"
#include "search/judge.h"
#include "search/relieve.h"

namespace penstock {
namespace {

// The activations' part of the limit that is left where the parameters of `stages` stages are there, the largest or the smallest.
double limit_beside_parameters(const SearchProblem& problem, std::size_t stages, bool largest_ones) {
  std::vector<double> parameters;
  for (const StageCosts& stage : problem.costs.stages) parameters.push_back(stage.parameters);
  std::sort(parameters.begin(), parameters.end());
  if (largest_ones) std::reverse(parameters.begin(), parameters.end());
  double limit = problem.memory_limit;
  for (std::size_t i = 0; i < std::min(stages, parameters.size()); ++i) limit -= parameters[i];
  return limit;
}

class MemorySearch {
 public:
  MemorySearch(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem), options_(options), random_(options.seed), clock_(options.seconds) {}

  SearchResult result() {
    for (const RegisteredTable& table : tables()) take_registered(table);
    find_bound();
    find_orders();
    if (candidates_.empty()) fail_too_small();
    improve_best();
    return finish();
  }

 private:
  bool relieves() const { return problem_.recompute || problem_.offload; }

  double slowest() const { return candidates_.size() < kMostCandidates ? kInfinity : candidates_.back().makespan; }

  // Schedules that gather parameters once for a unit of micro-batches come with every unit: the cost of gathers and the limit decide
  // between them.
  std::vector<RegisteredTable> tables() const {
    std::vector<RegisteredTable> out = tables_for(problem_, options_);
    const auto in_units = [](const RegisteredTable& table) { return takes(table.name, "--unit"); };
    const auto found = std::find_if(out.begin(), out.end(), in_units);
    if (!problem_.sharded || found == out.end()) return out;
    RegisteredTable table = *found;
    std::erase_if(out, [&](const RegisteredTable& other) { return other.name == table.name; });
    ScheduleOptions& options = table.options;
    for (options.unit = 1; options.unit <= options.microbatches; ++options.unit) {
      table.schedule = make_schedule(table.name, options);
      out.push_back(table);
    }
    return out;
  }

  void take_registered(const RegisteredTable& table) {
    const Schedule schedule = problem_.sharded ? with_gathers(table.schedule) : table.schedule;
    const TableTime time = time_of(problem_, schedule);
    if (keeps_limit(problem_, time.peak()) && (generator_.empty() || time.makespan < generator_time_)) {
      generator_ = table.title();
      generator_time_ = time.makespan;
    }
    take(schedule, table.title());
  }

  // Keeps the table as it is, or relieved by each means alone and by both.
  void take(const Schedule& schedule, const std::string& name) {
    TableTime time = time_of(problem_, schedule);
    smallest_ = std::min(smallest_, time.peak());
    if (keeps_limit(problem_, time.peak())) return keep({schedule, time.makespan, name});
    if (time.makespan >= slowest() || !relieves() || clock_.is_after(1)) return;
    for (const auto& [recompute, offload] : {std::pair{true, false}, {false, true}, {true, true}}) {
      if ((recompute && !problem_.recompute) || (offload && !problem_.offload)) continue;
      SearchProblem means = problem_;
      means.recompute = recompute;
      means.offload = offload;
      std::optional<Schedule> relieved = relieve(means, schedule);
      if (!relieved) continue;
      const double makespan = time_of(problem_, *relieved).makespan;
      keep({std::move(*relieved), makespan, name + ", relieved"});
    }
  }

  // One of each makespan: equal times are mostly equal tables.
  void keep(FoundTable&& candidate) {
    const auto place = std::find_if(candidates_.begin(), candidates_.end(),
                                    [&](const FoundTable& other) { return candidate.makespan <= other.makespan * (1 + kRounding); });
    if (place != candidates_.end() && candidate.makespan >= place->makespan * (1 - kRounding)) return;
    candidates_.insert(place, std::move(candidate));
    if (candidates_.size() > kMostCandidates) candidates_.pop_back();
  }

  // The work alone, for a limit of activations.
  SearchProblem plain(double limit) const {
    SearchProblem problem = problem_;
    problem.recompute = problem.offload = problem.sharded = false;
    problem.memory_limit = limit;
    for (StageCosts& stage : problem.costs.stages) stage.parameters = 0;
    return problem;
  }

  // Finds the time of the fastest table in which each micro-batch under way holds only what nothing can take from it, beside the fewest
  // parameters. Relief and gathers only add to that.
  void find_bound() {
    const std::size_t stages = problem_.shape.predecessors.size(), actors = static_cast<std::size_t>(problem_.actors);
    const std::size_t resident = !options_.placements.empty() ? 0 : problem_.sharded ? 1 : stages / actors;
    SearchProblem relaxed = plain(limit_beside_parameters(problem_, resident, false));
    if (relieves())
      for (StageCosts& stage : relaxed.costs.stages) stage.live = std::min(stage.live, stage.kept);
    SearchOptions options = options_;
    options.seconds *= kBound;
    try {
      const SearchResult result = search_schedule(relaxed, options);
      result_.lower_bound = result.lower_bound;
      result_.nodes = result.nodes;
      take_order(result);
    } catch (const Error&) {
      if (tables_for(problem_, options_).empty() && options_.placements.empty()) throw;  // nothing fits the stages at all
      fail_too_small();
    }
  }

  void take_order(const SearchResult& result) { take(problem_.sharded ? with_gathers(result.schedule) : result.schedule, result.found_by); }

  // For the limit and, where the rest can be relieved, larger ones.
  void find_orders() {
    const std::size_t stages = problem_.shape.predecessors.size(), actors = static_cast<std::size_t>(problem_.actors);
    const std::size_t of_actor = (stages + actors - 1) / actors;
    const double exact = limit_beside_parameters(problem_, problem_.sharded ? std::min<std::size_t>(2, of_actor) : of_actor, true);
    if (!std::isfinite(exact)) return;  // the bound's order
    const std::vector<double> factors = relieves() ? std::vector<double>{1, 1.25, 1.5, 2, 3, 4} : std::vector<double>{1};
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double until = kBound + (kOrders - kBound) * static_cast<double>(i + 1) / static_cast<double>(factors.size());
      if (clock_.is_after(until) || exact <= 0) continue;
      SearchOptions options = options_;
      if (i > 0) {
        options.nodes = 0;
        options.moves /= 4;
      }
      options.seconds *= (kOrders - kBound) / static_cast<double>(factors.size());
      try {
        take_order(search_schedule(plain(exact * factors[i]), options));
      } catch (const Error&) {  // not even one micro-batch fits: it must be relieved of a larger limit
      }
    }
  }

  void improve_best() {
    const std::vector<FoundTable> starts = candidates_;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (candidates_[0].makespan <= result_.lower_bound * (1 + kRounding)) return;
      std::int64_t actions = 0;
      for (const auto& row : starts[i].schedule.actors) actions += static_cast<std::int64_t>(row.size());
      const std::int64_t moves = std::min(options_.moves, kMostWork / std::max<std::int64_t>(actions, 1));
      const double until = kOrders + (1 - kOrders) * static_cast<double>(i + 1) / static_cast<double>(starts.size());
      Schedule improved = improve_table(problem_, starts[i].schedule, moves, random_, [&] { return clock_.is_after(until); });
      const double makespan = time_of(problem_, improved).makespan;
      if (makespan < starts[i].makespan) keep({std::move(improved), makespan, starts[i].found_by + ", improved"});
    }
  }

  SearchResult finish() {
    result_.schedule = std::move(candidates_[0].schedule);
    result_.found_by = candidates_[0].found_by;
    result_.runners_up.assign(std::make_move_iterator(candidates_.begin() + 1), std::make_move_iterator(candidates_.end()));
    result_.generator = generator_;
    result_.generator_time = generator_time_;
    result_.schedule.name = "searched";
    judge(problem_, result_);
    return std::move(result_);
  }

  [[noreturn]] void fail_too_small() const {
    std::vector<std::string> details = {concat("the table that holds least as it is needs ", number(smallest_))};
    if (relieves()) details.push_back("recomputing and offloading what may be brings none below the limit");
    throw Error(concat("no table found keeps a memory limit of ", number(problem_.memory_limit), " activations"), details,
                concat("a limit of ", number(smallest_), " would do"));
  }

  static constexpr std::size_t kMostCandidates = 4;
  static constexpr std::int64_t kMostWork = 4'000'000;  // actions timed in the improvement of one candidate: about a second
  static constexpr double kBound = 0.4, kOrders = 0.7;  // parts of the seconds by which these end

  const SearchProblem& problem_;
  const SearchOptions& options_;
  std::mt19937_64 random_;
  SearchClock clock_;
  std::vector<FoundTable> candidates_;  // the fastest first
  SearchResult result_;
  std::string generator_;
  double generator_time_ = 0;
  double smallest_ = kInfinity;  // peak of a table as it is
};

}  // namespace

bool counts_memory(const SearchProblem& problem) {
  const auto counts = [](const StageCosts& stage) { return stage.parameters > 0; };
  return problem.recompute || problem.offload || problem.sharded ||
         std::any_of(problem.costs.stages.begin(), problem.costs.stages.end(), counts);
}

SearchResult search_with_memory(const SearchProblem& problem, const SearchOptions& options) {
  return MemorySearch(problem, options).result();
}

}  // namespace penstock
