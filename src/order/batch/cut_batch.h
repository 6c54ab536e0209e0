// SPDX-License-Identifier: Apache-2.0
// Cuts a batch into micro-batches of few padding tokens: DynaPipe's dynamic programme (Jiang et al., 2311.10418, section 4).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "batch/batch_costs.h"
#include "batch/lengths.h"

namespace penstock {

struct BatchCutOptions {
  std::int64_t stages = 1, replicas = 1;
  std::int64_t chunks = 1;                                  // stages per actor
  double interval = 0;                                      // two candidates for the longest time differ by more than this
  double stored_limit = kInfinity, peak_limit = kInfinity;  // of ShapeCost::stored and ShapeCost::peak of one micro-batch
};

struct BatchCut {
  double objective = 0;             // (stages - 1) longest / chunks + sum / replicas
  double longest = 0;               // the candidate below which all micro-batches' times are
  double sum = 0;                   // of the micro-batches' times
  std::vector<std::size_t> begins;  // of each micro-batch, as places in the order
  std::vector<BatchShape> shapes;
};

// The cut of the samples in that order (a permutation) with the least objective; at equal objectives the one with the least longest time.
// The objective counts the candidate, not the real longest time, as the authors' code does. None where no cut keeps the limits.
// n samples: O(c n^2) for c candidates, of which there are n^2 at most.
std::optional<BatchCut> cut_batch(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order, const ShapeCosts& costs,
                                  const BatchCutOptions& options);

// For each of these times, the cut with the least sum whose micro-batches take no longer; none for a time that no cut keeps.
std::vector<BatchCut> cuts_below(const std::vector<double>& longest, const std::vector<SampleLengths>& samples,
                                 const std::vector<std::size_t>& order, const ShapeCosts& costs, const BatchCutOptions& options);

// Throws the Error of a batch that cannot be cut under these limits: it names the first sample that fits in no mode, even alone.
[[noreturn]] void fail_no_cut(const std::vector<SampleLengths>& samples, const std::vector<RecomputeMode>& modes,
                              const BatchCutOptions& options);

struct FittedCut {
  BatchCut cut;
  std::size_t mode = 0;
  double limit = 0;  // of a micro-batch's stored memory
};
// Cuts so that a stage keeps its `available` memory. First the micro-batches that live at once shall fit together, each into available /
// stages; then each may take all. For each limit the modes are tried in turn, and the first that fits is taken. Where the interval leaves
// out every candidate that the longest sample keeps below, all are tried. Throws Error with the sample that fits in no mode.
FittedCut fit_batch(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order,
                    const std::vector<RecomputeMode>& modes, double available, const BatchCutOptions& options);

}  // namespace penstock
