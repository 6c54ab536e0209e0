// SPDX-License-Identifier: Apache-2.0
// Chains of stages on equal workers, each stage what one downset has more than the one before it.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "base/numbers.h"
#include "planners/downsets.h"

namespace penstock {

// The best chains from one downset to each other one, by set and by how many workers they use: the value, infinite where there is none, and
// the last stage.
struct ChainTable {
  struct Last {
    int from = -1;    // the downset before the stage
    int workers = 0;  // of the stage
  };

  ChainTable(int sets, int workers) : width(at(workers) + 1), values(at(sets) * width, kInfinity), lasts(values.size()) {}

  double* value(int set) { return &values[at(set) * width]; }
  const double* value(int set) const { return &values[at(set) * width]; }
  Last* last(int set) { return &lasts[at(set) * width]; }
  const Last* last(int set) const { return &lasts[at(set) * width]; }

  std::size_t width;  // the most workers, plus 1
  std::vector<double> values;
  std::vector<Last> lasts;
};

// Where chains are looked for.
struct ChainSpace {
  const Downsets& downsets;
  const std::vector<double>& work;  // by set: what its nodes take on one device at least
  int workers = 1;
  int of_stage = 1;  // the most workers of one stage
  int devices = 1;   // of each worker
  TimeLimit& limit;
};

// The number of workers that so much work needs to keep to the bound on each.
inline double workers_for(double work, double bound) {
  if (work == kInfinity) return kInfinity;
  return work > 0 ? work / bound : 0;
}

// Computes the chains towards `end` over some of the sets, which ascend and begin where chains do. Values above `bound` are dropped.
// `add_stage(table, from, to, most, least)` extends the chains to `from`, which use at least `least` workers, by one stage, to at most
// `most` workers.
template <class AddStage>
ChainTable chains_over(const ChainSpace& space, const std::vector<int>& sets, int end, double bound, AddStage&& add_stage) {
  const int n = space.workers;
  const double most_work = bound * space.devices * space.of_stage * (1 + 1e-9);  // of a stage
  ChainTable table(space.downsets.count(), n);
  table.value(sets[0])[0] = 0;
  std::vector<int> least(at(space.downsets.count()), n + 1);  // by set: the fewest workers that a chain to it uses
  least[at(sets[0])] = 0;
  for (std::size_t j = 1; j < sets.size(); ++j) {
    const int to = sets[j];
    // The work that is left must fit on the workers that are left.
    const double left = workers_for(space.work[at(end)] - space.work[at(to)], bound * space.devices);
    const int most = left > n ? 0 : n - static_cast<int>(std::ceil(left * (1 - 1e-9)));
    for (std::size_t i = 0; i < j && !space.limit.is_over(kPairWork); ++i) {
      const int from = sets[i];
      if (least[at(from)] < most && space.work[at(to)] - space.work[at(from)] <= most_work && space.downsets.nested(from, to))
        add_stage(table, from, to, most, least[at(from)]);
    }
    for (int used = most; used > 0; --used)
      if (table.value(to)[used] < kInfinity) least[at(to)] = used;
  }
  return table;
}

}  // namespace penstock
