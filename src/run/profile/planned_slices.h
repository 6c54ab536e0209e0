// SPDX-License-Identifier: Apache-2.0
// Lengths of a pipeline's slices: TeraPipe's planner (batch/slice_sequences.h), where predicted steps say what slices take.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "batch/load_fit.h"
#include "penstock/timeline.h"

namespace penstock {

using SliceLengths = std::vector<std::int64_t>;  // tokens, from a sequence's first one on

struct PipelineSlicing {
  int actors = 1, microbatches = 1;
  std::int64_t length = 1;  // tokens of a sequence
  std::int64_t unit = 1;    // tokens: lengths are multiples of it, but the last one, which takes the rest
};
// 128 tokens, or a 64th of the sequence where that is more and a 16th of it where that is less.
std::int64_t slice_unit(std::int64_t length);
// Throws Error unless a sequence has from 2 to 1024 units, which may be planned.
void check_unit(const PipelineSlicing& slicing);

// The times that slices of a micro-batch take on each device, in each phase: forward, and all that goes back.
inline constexpr std::size_t kPhases = 2;
using SliceTimes = std::array<std::vector<std::vector<LoadPoint>>, kPhases>;  // by device: seconds of some slices
using SliceFits = std::array<std::vector<LoadFit>, kPhases>;                  // by device: of any slice

// Adds what slices of these lengths (tokens) take by the timeline of a step in them.
void add_slice_times(SliceTimes& times, const Timeline& timeline, const std::vector<double>& lengths, int microbatches);
// A slice of l tokens behind c others takes a + b l + d c + e l (c + l / 2), none of these below 0: d is for keys and values of earlier
// slices, which are read, and their gradients, which are added up, and for what each of these slices costs by itself.
SliceFits fit_slices(const SliceTimes& times);

// Returns the seconds of a step if all slices go forward and then back (schedule terapipe), each for as long as on its dearest device: of
// each phase the sum over all micro-batches + (actors - 1) times the longest slice's.
double step_seconds(const PipelineSlicing& slicing, const SliceFits& fits, const SliceLengths& lengths);

// Two ways to cut: the least step_seconds of three plans, which are the best by the forward's times, by the backward's and by their sum
// (for both phases together only one of equal dearest slices is proven to be the best); and the same of equal slices.
std::vector<SliceLengths> plan_slices(const PipelineSlicing& slicing, const SliceFits& fits);

}  // namespace penstock
