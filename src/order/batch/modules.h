// SPDX-License-Identifier: Apache-2.0
// Models of several modules, such as an image encoder in front of a language model, whose micro-batches differ in how much of each they
// have: DIP (Li et al., 2504.14145).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "penstock/schedule.h"

namespace penstock {

// A module's samples are computed in parts of this many: the smallest of the sizes, which ascend, whose throughput is at least 95 % of the
// best. `throughputs`: samples per second at each size.
std::int64_t part_size(const std::vector<std::int64_t>& sizes, const std::vector<double>& throughputs);
// `samples` in as few parts of at most `most` as possible, which differ by one at most, larger ones first. None for no samples.
std::vector<std::int64_t> even_parts(std::int64_t samples, std::int64_t most);
// Into how many segments, each over all ranks, each module is cut: its time over the least time of a module, rounded down.
std::vector<std::int64_t> segment_counts(const std::vector<double>& times);

// A micro-batch: the forward times, on each rank in each round, of its parts and of its backbone, which waits for all of them. Backwards
// take twice that, the backbone's first. A segment is one part, or one backbone, on all ranks, as many rounds as its module has segments
// there (segment_counts).
struct ModuleMicroBatch {
  std::vector<double> parts;
  double backbone = 0;
};

struct ModuleRun {
  std::int32_t segment = 0;
  Kind kind = Kind::F;  // F, B, or, where backwards are split, I and W
  double begin = 0;
  std::int32_t stage = 0;  // of the segment's: round * ranks + its place in the round

  bool operator==(const ModuleRun&) const = default;
};
// Segments are numbered by micro-batch: its parts, then its backbone.
struct ModuleTable {
  double makespan = kInfinity;
  std::vector<std::vector<ModuleRun>> ranks;
  std::vector<std::vector<int>> again = {};  // by segment and its stage: layers that the backward computes again; none: none of any
};

// A segment's stage holds `full` on its rank from F to B, or to W. Each layer that the backward computes again saves `saved` of it until
// then, and takes as long as its share of the forward. A split backward computes them again in I, so that they are there from I to W.
struct ModuleMemory {
  double full = 0, saved = 0;
  int layers = 0;
};

struct ModuleProblem {
  int ranks = 1;
  std::vector<ModuleMicroBatch> micro_batches;
  int most_live = 0;  // segments that live on a rank, from F to B, each round by itself; 0: any number
  int part_rounds = 1, backbone_rounds = 1;
  // Every second round goes from the last rank to the first, so that the last stage of a part and the first of the backbone are on one rank
  // where parts have an odd number of rounds. DIP's rounds all go from the first rank to the last.
  bool folded = false;
  // A backward is two runs, each as long as the forward: I, which others wait for, and W, which runs at any time behind it on its rank. A
  // segment lives until its W. DIP's are whole.
  bool split = false;
  std::vector<std::vector<ModuleMemory>> memory = {};  // by segment and its stage; none: only most_live counts
  double room = kInfinity;                             // of a rank, for all that it holds at once
  int at_once =
      0;  // micro-batches of which something has run and something waits; 0: any number. One at once cannot stall for want of room
};

// The parts of a micro-batch, or its backbone: what an order of segments names as one.
struct ModuleItem {
  std::int32_t micro_batch = 0;
  bool backbone = false;

  auto operator<=>(const ModuleItem&) const = default;
};

// DIP's greedy interleaving under an order of all items: the rank whose next run can begin first goes on. If a forward and a backward were
// both ready before its last run ended, they alternate; else what can begin first runs; of several, the first in the order. Forwards for
// which there is no room, or beyond `most_live`, do not run, which may stall: then the makespan is infinite.
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
// proves small ones best. It ends where a table meets the bound. Tables of split backwards begin with the order that the greedy found for
// whole ones, and are not proven but by the bound. Nothing is computed again. Throws Error where no order tried finishes.
ModuleResult search_modules(const ModuleProblem& problem, const ModuleSearchOptions& options = {});
// The same; none where no order tried finishes.
std::optional<ModuleResult> find_modules(const ModuleProblem& problem, const ModuleSearchOptions& options = {});

// No table of the problem takes less.
double modules_bound(const ModuleProblem& problem);

}  // namespace penstock
