// The fastest table found for micro-batches that differ: in which order they enter the pipeline, and what each actor runs when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/search.h"

namespace penstock {

struct TableSearchOptions {
  std::int64_t candidates = 400;  // tables that are timed, at most, beside those given; the result depends on nothing else and the seed
  std::uint64_t seed = 0;
};

struct SearchedTable {
  Schedule schedule;
  TableTime time;
  std::string found_by;    // the given table's name, the policy, or the step that found it
  double lower_bound = 0;  // of every table of these micro-batches
};

// The problem is of a chain with one stage on each actor, whose micro-batches may differ (TableCosts::first); the numbers of micro-batches
// are the problem's. Of list schedules in many orders of injection, of `given` valid tables, and of what moving their actions makes of the
// best, the fastest that keeps the memory limit: never slower than a given one that keeps it. Where the problem allows recomputation,
// tables that hold too much are relieved (relieve.h). Throws Error for no micro-batches, costs that are negative or no numbers, and for a
// micro-batch that does not keep the limit alone.
SearchedTable search_table(const SearchProblem& problem, const std::vector<Schedule>& given, const TableSearchOptions& options = {});

// Every actor works for at least so long, before that waits for the first micro-batch and after it for the last to come back.
double work_bound(const SearchProblem& problem);

}  // namespace penstock
