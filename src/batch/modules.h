// Models of several modules, such as an image encoder in front of a language model, whose micro-batches differ in how much of each they
// have: DIP (Li et al., 2504.14145).
#pragma once

#include <cstdint>
#include <vector>

#include "base/numbers.h"

namespace penstock {

// A module's samples are computed in parts of this many: the smallest of the sizes, which ascend, whose throughput is at least 95 % of the
// best. `throughputs`: samples per second at each size.
std::int64_t part_size(const std::vector<std::int64_t>& sizes, const std::vector<double>& throughputs);
// `samples` in as few parts of at most `most` as possible, which differ by one at most, larger ones first. None for no samples.
std::vector<std::int64_t> even_parts(std::int64_t samples, std::int64_t most);
// Into how many segments, each over all ranks, each module is cut: its time over the least time of a module, rounded down.
std::vector<std::int64_t> segment_counts(const std::vector<double>& times);

// A micro-batch: the forward times, on each rank, of its parts and of its backbone, which waits for all of them. Backwards take twice
// that, the backbone's first. A segment is one part, or one backbone, on all ranks.
struct ModuleMicroBatch {
  std::vector<double> parts;
  double backbone = 0;
};

struct ModuleRun {
  std::int32_t segment = 0;
  bool backward = false;
  double begin = 0;

  bool operator==(const ModuleRun&) const = default;
};
// Segments are numbered by micro-batch: its parts, then its backbone.
struct ModuleTable {
  double makespan = kInfinity;
  std::vector<std::vector<ModuleRun>> ranks;
};

struct ModuleProblem {
  int ranks = 1;
  std::vector<ModuleMicroBatch> micro_batches;
  int most_live = 0;  // segments that live on a rank, from F to B; 0: any number
};

// The parts of a micro-batch, or its backbone: what an order of segments names as one.
struct ModuleItem {
  std::int32_t micro_batch = 0;
  bool backbone = false;

  auto operator<=>(const ModuleItem&) const = default;
};

// DIP's greedy interleaving under an order of all items: the rank whose next run can begin first goes on. If a forward and a backward were
// both ready before its last run ended, they alternate; else what can begin first runs; of several, the first in the order. At `most_live`
// only backwards run, which may stall: then the makespan is infinite.
ModuleTable interleave_modules(const ModuleProblem& problem, const std::vector<ModuleItem>& order);

struct ModuleSearchOptions {
  std::int64_t rollouts = 3000;  // orders that each local search tries
  std::int64_t nodes = 300'000;  // of the exact search behind it
  std::uint64_t seed = 0;
};
struct ModuleResult {
  ModuleTable table;
  double lower_bound = 0;
  bool proven = false;  // no table is faster
};
// The fastest table found: first by the greedy under many orders of items, all of them where they are few, else by random local search;
// then by local search over orders of all forwards and backwards; then by branch and bound over all tables, which without `most_live`
// proves small ones best. It ends where a table meets the bound. Throws Error where the greedy stalls under every order.
ModuleResult search_modules(const ModuleProblem& problem, const ModuleSearchOptions& options = {});

// No table of the problem takes less.
double modules_bound(const ModuleProblem& problem);

}  // namespace penstock
