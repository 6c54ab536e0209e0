// SPDX-License-Identifier: Apache-2.0
// Sends are actions of rows like others to improve_table: one that stands later leaves its link to another actor's, or to what the row
// makes next. Receives are put last, where nothing waits for them.
#include "search/order_transfers.h"

#include <algorithm>
#include <random>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/transfers.h"
#include "search/judge.h"
#include "search/search_with_memory.h"

namespace penstock {
namespace {

constexpr double kOrdering = 0.5;  // the part of the seconds that is kept for it
constexpr std::size_t kMostTables = 4;

bool has_sends(const Schedule& schedule) {
  return std::ranges::any_of(schedule.actors, [](const std::vector<Action>& row) {
    return std::ranges::any_of(row, [](const Action& action) { return is_send(action.kind); });
  });
}

}  // namespace

SearchResult search_with_transfers(const SearchProblem& problem, const SearchOptions& options) {
  if (problem.steps > 1)
    throw Error(concat("where transfers start is said in tables of one step, not of ", problem.steps), {},
                "leave it to lowering (without --order-transfers), or take --window 1");
  // One receive is for all that an action needs of others: on a chain that is one send's.
  if (!told_predecessors(problem.shape).empty())
    throw Error("where transfers start is searched for chains of stages", {}, "leave out --order-transfers");
  SearchClock clock(options.seconds);
  SearchProblem inferred = problem;
  inferred.order_transfers = false;
  SearchOptions first = options;
  first.seconds *= 1 - kOrdering;
  first.nodes = 0;  // a proof is of transfers that start as soon as they can
  SearchResult result = search_schedule(inferred, first);
  std::vector<FoundTable> tables = {{result.schedule, result.time.makespan, result.found_by}};
  for (const FoundTable& other : result.runners_up)
    if (tables.size() < kMostTables) tables.push_back(other);
  std::mt19937_64 random(options.seed);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const double until = 1 - kOrdering + kOrdering * static_cast<double>(i + 1) / static_cast<double>(tables.size());
    const Schedule start = with_sends(tables[i].schedule, problem.shape);
    if (!has_sends(start)) continue;
    Schedule found = improve_table(inferred, start, options.moves, random, [&] { return clock.is_after(until); });
    const TableTime time = time_table(found, problem.shape, problem.costs, {.network = problem.network, .disturbance = {}, .record = true});
    if (time.makespan >= result.time.makespan * (1 - kRounding)) continue;
    result.schedule = with_receives(found, problem.shape, time);
    result.schedule.name = "searched";
    result.found_by = tables[i].found_by + ", transfers in order";
    judge(problem, result);
  }
  return result;
}

}  // namespace penstock
