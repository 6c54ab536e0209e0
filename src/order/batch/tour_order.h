// SPDX-License-Identifier: Apache-2.0
// The order of samples with inputs and targets in which neighbours are alike in both (DynaPipe, 2311.10418).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch/lengths.h"

namespace penstock {

struct TourOrder {
  std::vector<std::size_t> order;  // indices of the samples
  double length = 0;               // of the way through all samples: input and target differences added up
};

// Samples are first put together in clusters whose members differ by less than `distance` tokens, input and target added up (complete
// linkage); then an open tour goes through the clusters' centres, short in the same measure; inside of a cluster samples keep their order.
// The authors' code asks a solver (LKH) for the tour; this one comes from nearest neighbours, improved by 2-opt and by moving runs of up to
// three, so it may be longer. n samples: O(n^2) time and memory for the clusters.
TourOrder tour_order(const std::vector<SampleLengths>& samples, double distance = 16);

}  // namespace penstock
