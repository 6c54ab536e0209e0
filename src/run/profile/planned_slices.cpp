// SPDX-License-Identifier: Apache-2.0
#include "profile/planned_slices.h"

#include <algorithm>
#include <iterator>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "batch/slice_sequences.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using UnitTimes = std::vector<std::vector<double>>;  // [length - 1][context], both in units

std::int64_t units_of(const PipelineSlicing& slicing) {
  return (slicing.length + slicing.unit - 1) / slicing.unit;
}

// The load of a slice. Where that of whole samples has the square of their length, a slice has the pairs that its attention is of; and in
// the place of a target's tokens, those that are behind it.
BatchLoad load_of(double length, double context) {
  BatchLoad load;
  load.input = length;
  load.target = context;
  load.input_squares = length * (context + length / 2);
  return load;
}

double dearest(const std::vector<LoadFit>& devices, double length, double context) {
  double most = 0;
  for (const LoadFit& fit : devices) most = std::max(most, fit(load_of(length, context)));
  return most;
}

SliceLengths tokens(const PipelineSlicing& slicing, const std::vector<int>& units) {
  SliceLengths out;
  std::int64_t left = slicing.length;
  for (const int n : units) {
    out.push_back(std::min(n * slicing.unit, left));
    left -= out.back();
  }
  return out;
}

UnitTimes unit_times(const PipelineSlicing& slicing, const std::vector<LoadFit>& devices) {
  const std::int64_t units = units_of(slicing);
  UnitTimes out(at(units));
  for (std::int64_t length = 1; length <= units; ++length)
    for (std::int64_t context = 0; context + length <= units; ++context) {
      const std::int64_t before = context * slicing.unit, own = std::min(length * slicing.unit, slicing.length - before);
      out[at(length - 1)].push_back(dearest(devices, static_cast<double>(own), static_cast<double>(before)));
    }
  return out;
}

UnitTimes sum(UnitTimes a, const UnitTimes& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j) a[i][j] += b[i][j];
  return a;
}

}  // namespace

std::int64_t slice_unit(std::int64_t length) {
  const auto part = [&](std::int64_t n) { return (length + n - 1) / n; };
  return std::clamp<std::int64_t>(128, part(64), part(16));
}

void check_unit(const PipelineSlicing& slicing) {
  constexpr std::int64_t kMost = 1024;
  const std::int64_t units = units_of(slicing);
  if (units >= 2 && units <= kMost) return;
  throw Error(
      concat("slices in units of ", counted(slicing.unit, "token"), ": a sequence of ", slicing.length, " has ", counted(units, "unit")),
      {concat("slices are planned of 2 to ", kMost)}, "--slice-unit TOKENS");
}

void add_slice_times(SliceTimes& times, const Timeline& timeline, const std::vector<double>& lengths, int microbatches) {
  std::array<std::vector<std::vector<double>>, kPhases> seconds;  // by device and slice
  seconds.fill(std::vector(timeline.devices.size(), std::vector<double>(lengths.size())));
  for (const Activity& a : timeline.activities) {
    if (a.lane != Lane::compute || !a.action || a.microbatch < 0) continue;
    const StagePart part = part_of(a.stage, timeline.slices, timeline.blocks);
    seconds[a.kind == Kind::F ? 0 : 1][at(a.device)][at(part.slice)] += (a.end - a.begin) / microbatches;
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    times[phase].resize(timeline.devices.size());
    for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
      double context = 0;
      for (std::size_t j = 0; j < lengths.size(); context += lengths[j++])
        times[phase][d].push_back({load_of(lengths[j], context), seconds[phase][d][j]});
    }
  }
}

SliceFits fit_slices(const SliceTimes& times) {
  SliceFits fits;
  for (std::size_t phase = 0; phase < kPhases; ++phase) std::ranges::transform(times[phase], std::back_inserter(fits[phase]), fit_loads);
  return fits;
}

double step_seconds(const PipelineSlicing& slicing, const SliceFits& fits, const SliceLengths& lengths) {
  double out = 0;
  for (const std::vector<LoadFit>& devices : fits) {
    double sum = 0, longest = 0, context = 0;
    for (const std::int64_t length : lengths) {
      const double seconds = dearest(devices, static_cast<double>(length), context);
      sum += seconds;
      longest = std::max(longest, seconds);
      context += static_cast<double>(length);
    }
    out += slicing.microbatches * sum + (slicing.actors - 1) * longest;
  }
  return out;
}

std::vector<SliceLengths> plan_slices(const PipelineSlicing& slicing, const SliceFits& fits) {
  check_unit(slicing);
  const SliceProblem problem{.actors = slicing.actors, .sequences = slicing.microbatches, .length = static_cast<int>(units_of(slicing))};
  const UnitTimes forward = unit_times(slicing, fits[0]), backward = unit_times(slicing, fits[1]);
  std::vector<SliceLengths> out;
  for (const auto planner : {slice_sequences, equal_slices}) {
    std::vector<SliceLengths> plans;
    for (const UnitTimes& times : {forward, backward, sum(forward, backward)}) {
      // Micro-batches follow one another: each is a group of its own, and all groups are cut in the same way.
      const SliceCost cost = [&](int together, int length, int context) {
        return together > 1 ? kInfinity : times[at(length - 1)][at(context)];
      };
      plans.push_back(tokens(slicing, planner(problem, cost).groups[0].slices));
    }
    out.push_back(*std::ranges::min_element(plans, {}, [&](const SliceLengths& plan) { return step_seconds(slicing, fits, plan); }));
  }
  return out;
}

}  // namespace penstock
