// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/race.h"

namespace penstock {
namespace {

struct Searched {
  SearchProblem problem;
  SearchResult result;
  std::vector<FoundTable> whole;  // tables found by the search with whole backwards alone, where there are other kinds
  std::vector<FoundTable> named;  // registered tables within the limit
};

std::vector<FoundTable> tables_of(const SearchResult& result) {
  std::vector<FoundTable> out = {{result.schedule, result.time.makespan, result.found_by}};
  out.insert(out.end(), result.runners_up.begin(), result.runners_up.end());
  return out;
}

// Searches with all kinds of backward, and with whole ones alone. I and W in place of B let an actor idle less and work more; how much more
// is the least certain part of a prediction.
Searched searched(const SearchProblem& problem, const SearchOptions& options) {
  Searched out{problem, search_schedule(problem, options), {}, tables_within(problem, options)};
  if (!problem.split || !problem.whole) return out;
  SearchProblem whole = problem;
  whole.split = false;
  out.whole = tables_of(search_schedule(whole, options));
  return out;
}

std::vector<Searched> all_searched(const std::function<SearchProblem(int)>& problem, const RacedSearchOptions& options,
                                   std::vector<std::string>& unsearched) {
  std::vector<Searched> out;
  SearchOptions each = options.search;
  each.seconds /= 2 * static_cast<double>(options.chunks.size());
  for (const int chunks : options.chunks) {
    const std::string where = concat(chunks, chunks == 1 ? " stage" : " stages", " per actor");
    if (options.progress) options.progress("search: " + where);
    try {
      out.push_back(searched(problem(chunks), each));
    } catch (const Error& error) {
      if (out.empty() && chunks == options.chunks.back()) throw;
      unsearched.push_back(concat(where, ": ", split(error.what(), '\n')[0]));
    }
  }
  return out;
}

// Whether two tables give the same program: a fused pair runs as its two actions.
bool is_same_program(Schedule a, Schedule b) {
  for (Schedule* schedule : {&a, &b})
    for (auto& row : schedule->actors)
      for (Action& action : row) action.fused_with_next = false;
  return a.actors == b.actors;
}

auto find_same(std::vector<Racer>& racers, const FoundTable& table) {
  return std::find_if(racers.begin(), racers.end(),
                      [&](const Racer& racer) { return is_same_program(racer.table.schedule, table.schedule); });
}

// Enters at most `count` tables: the first of each group, as predictions are surer within a group than between groups, then the best of all
// the others.
void enter(const std::vector<std::vector<FoundTable>>& groups, int count, bool named, std::vector<Racer>& racers) {
  std::vector<std::pair<bool, const FoundTable*>> order;  // whether it is not the first of its group; the table
  for (const std::vector<FoundTable>& group : groups)
    for (const FoundTable& table : group) order.emplace_back(&table != group.data(), &table);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->makespan) < std::pair(b.first, b.second->makespan);
  });
  for (const auto& [ignored, table] : order) {
    if (count == 0) return;
    if (const auto known = find_same(racers, *table); known != racers.end()) {
      known->named = known->named || named;
      continue;
    }
    racers.push_back({*table, named});
    --count;
  }
}

std::vector<Racer> racers_of(const std::vector<Searched>& searches, int count) {
  std::vector<std::vector<FoundTable>> found, named;
  for (const Searched& search : searches) {
    found.push_back(tables_of(search.result));
    found.push_back(search.whole);
    named.push_back(search.named);
  }
  std::vector<Racer> racers;
  enter(found, count, /*named=*/false, racers);
  enter(named, count, /*named=*/true, racers);
  return racers;
}

// The racers that can be run, in front; the others keep their error.
std::vector<TimedStep> prepared(const std::function<TimedStep(const Schedule&)>& prepare, std::vector<Racer>& racers) {
  std::vector<TimedStep> out;
  for (Racer& racer : racers) {
    try {
      out.push_back(prepare(racer.table.schedule));
    } catch (const Error& error) {
      racer.refused = split(error.what(), '\n')[0];
    }
  }
  std::stable_partition(racers.begin(), racers.end(), [](const Racer& racer) { return racer.refused.empty(); });
  return out;
}

// The same table measures a few per cent apart from race to race. Between tables that are closer than this the published one is taken: if a
// search were believed too easily, its table would end behind the one that it should beat.
void prefer_named(std::vector<Racer>& racers) {
  const auto best = std::find_if(racers.begin(), racers.end(), [](const Racer& racer) { return racer.named && racer.refused.empty(); });
  if (best == racers.end() || best->measured.count < racers.front().measured.count) return;
  if (best->measured.median <= kClear * racers.front().measured.median) std::rotate(racers.begin(), best, best + 1);
}

void measure(const std::function<TimedStep(const Schedule&)>& prepare, const RacedSearchOptions& options, std::vector<Racer>& racers) {
  const std::vector<TimedStep> programs = prepared(prepare, racers);
  if (programs.empty()) {
    std::vector<std::string> reasons;
    for (const Racer& racer : racers) reasons.push_back(concat(racer.table.found_by, ": ", racer.refused));
    throw Error(concat(options.model, " can run none of the tables found"), reasons);
  }
  RaceOptions with = options.race;
  if (options.progress) with.progress = [&](const std::string& text) { options.progress("race: " + text); };
  const std::vector<Sample> samples = race(programs, with);
  for (std::size_t i = 0; i < samples.size(); ++i) racers[i].measured = samples[i];
  std::stable_sort(racers.begin(), racers.begin() + static_cast<std::ptrdiff_t>(samples.size()),
                   [](const Racer& a, const Racer& b) { return is_ahead(a.measured, b.measured); });
  prefer_named(racers);
}

// Makes the fastest table the search's result: what the search proved of its problem is compared with this table.
void take_fastest(const std::vector<Searched>& searches, RacedSearch& raced) {
  const FoundTable& fastest = raced.racers.front().table;
  const auto search = std::find_if(searches.begin(), searches.end(),
                                   [&](const Searched& one) { return one.result.schedule.stages() == fastest.schedule.stages(); });
  raced.problem = search->problem;
  raced.result = search->result;
  SearchResult& result = raced.result;
  result.schedule = fastest.schedule;
  result.schedule.name = "searched";
  result.found_by = fastest.found_by;
  result.time = time_table(result.schedule, raced.problem.shape, raced.problem.costs, {.network = raced.problem.network});
  result.optimal = search->result.optimal && result.time.makespan <= search->result.time.makespan;
}

}  // namespace

RacedSearch raced_search(const std::function<SearchProblem(int chunks)>& problem, const std::function<TimedStep(const Schedule&)>& prepare,
                         const RacedSearchOptions& options) {
  RacedSearch raced;
  const std::vector<Searched> searches = all_searched(problem, options, raced.unsearched);
  raced.racers = racers_of(searches, options.candidates);
  measure(prepare, options, raced.racers);
  take_fastest(searches, raced);
  return raced;
}

}  // namespace penstock
