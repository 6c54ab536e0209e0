// SPDX-License-Identifier: Apache-2.0
#include "batch/cut_batch.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// windows[i][k]: samples i .. i+k of the order as one micro-batch.
struct Window {
  double time = 0;
  BatchShape shape;
  double least = 0;  // time of this and all longer ones
};
using Windows = std::vector<std::vector<Window>>;

Windows fitting_windows(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order, const ShapeCosts& costs,
                        const BatchCutOptions& options) {
  Windows windows(order.size());
  for (std::size_t begin = 0; begin < order.size(); ++begin) {
    BatchShape shape;
    for (std::size_t end = begin; end < order.size(); ++end) {
      const auto [input, target] = samples[order[end]];
      shape = {shape.samples + 1, std::max(shape.input, input), std::max(shape.target, target)};
      const std::optional<ShapeCost> cost = costs(shape);
      if (!cost || cost->stored > options.stored_limit || cost->peak > options.peak_limit) break;
      windows[begin].push_back({cost->time, shape, cost->time});
    }
    for (std::size_t k = windows[begin].size(); k-- > 1;)
      windows[begin][k - 1].least = std::min(windows[begin][k - 1].time, windows[begin][k].least);
  }
  return windows;
}

std::vector<double> candidates_of(const Windows& windows, double interval) {
  std::vector<double> times;
  for (const auto& of_begin : windows)
    for (const Window& window : of_begin) times.push_back(window.time);
  std::sort(times.begin(), times.end());
  std::vector<double> kept;
  for (const double time : times)
    if (kept.empty() || time > kept.back() + interval) kept.push_back(time);
  return kept;
}

// The least sum of times of each prefix in windows that take at most `longest`, and where the last of them begins.
struct Prefixes {
  std::vector<double> sum;
  std::vector<std::size_t> begin;
};

Prefixes least_sums(const Windows& windows, double longest) {
  const std::size_t n = windows.size();
  Prefixes out{std::vector<double>(n + 1, kInfinity), std::vector<std::size_t>(n + 1, 0)};
  out.sum[0] = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (out.sum[i] == kInfinity) continue;
    for (std::size_t k = 0; k < windows[i].size() && windows[i][k].least <= longest; ++k) {
      const double sum = out.sum[i] + windows[i][k].time;
      if (windows[i][k].time > longest || sum >= out.sum[i + k + 1]) continue;
      out.sum[i + k + 1] = sum;
      out.begin[i + k + 1] = i;
    }
  }
  return out;
}

double objective(const BatchCutOptions& options, double longest, double sum) {
  return static_cast<double>(options.stages - 1) * longest / static_cast<double>(options.chunks) +
         sum / static_cast<double>(options.replicas);
}

BatchCut cut_of(const Windows& windows, const BatchCutOptions& options, double longest, const Prefixes& prefixes) {
  const double sum = prefixes.sum.back();
  BatchCut cut{.objective = objective(options, longest, sum), .longest = longest, .sum = sum, .begins = {}, .shapes = {}};
  for (std::size_t end = windows.size(); end > 0; end = prefixes.begin[end]) {
    const std::size_t begin = prefixes.begin[end];
    cut.begins.push_back(begin);
    cut.shapes.push_back(windows[begin][end - begin - 1].shape);
  }
  std::reverse(cut.begins.begin(), cut.begins.end());
  std::reverse(cut.shapes.begin(), cut.shapes.end());
  return cut;
}

}  // namespace

std::optional<BatchCut> cut_batch(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order, const ShapeCosts& costs,
                                  const BatchCutOptions& options) {
  const Windows windows = fitting_windows(samples, order, costs, options);
  const double least_sum = least_sums(windows, kInfinity).sum.back();
  double best = kInfinity, best_longest = 0;
  Prefixes prefixes;
  for (const double longest : candidates_of(windows, options.interval)) {
    if (objective(options, longest, least_sum) >= best) break;  // and so are all later ones
    Prefixes next = least_sums(windows, longest);
    const double value = objective(options, longest, next.sum.back());
    if (value >= best) continue;
    best = value;
    best_longest = longest;
    prefixes = std::move(next);
  }
  if (best == kInfinity) return std::nullopt;
  return cut_of(windows, options, best_longest, prefixes);
}

std::vector<BatchCut> cuts_below(const std::vector<double>& longest, const std::vector<SampleLengths>& samples,
                                 const std::vector<std::size_t>& order, const ShapeCosts& costs, const BatchCutOptions& options) {
  const Windows windows = fitting_windows(samples, order, costs, options);
  std::vector<BatchCut> out;
  for (const double most : longest)
    if (const Prefixes prefixes = least_sums(windows, most); prefixes.sum.back() < kInfinity)
      out.push_back(cut_of(windows, options, most, prefixes));
  return out;
}

void fail_no_cut(const std::vector<SampleLengths>& samples, const std::vector<RecomputeMode>& modes, const BatchCutOptions& options) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    bool fits = false;
    std::vector<std::string> details;
    for (const RecomputeMode& mode : modes) {
      const std::optional<ShapeCost> cost = mode.costs({1, samples[i].input, samples[i].target});
      fits |= cost && cost->stored <= options.stored_limit && cost->peak <= options.peak_limit;
      details.push_back(mode.name +
                        (cost ? concat(": stores ", number(cost->stored), ", peaks at ", number(cost->peak)) : ": not measured"));
    }
    if (fits) continue;
    const std::string target = samples[i].target > 0 ? concat(" and ", samples[i].target) : "";
    throw Error(concat("sample ", i, ", padded to ", samples[i].input, target, " tokens, fits into no micro-batch"), details,
                concat("cut it shorter, use more stages, or give more memory than ", number(options.stored_limit), " to store and ",
                       number(options.peak_limit), " at the peak"));
  }
  throw Error("every sample fits alone in some mode, but no mode fits them all", {}, "give more memory");
}

FittedCut fit_batch(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& order,
                    const std::vector<RecomputeMode>& modes, double available, const BatchCutOptions& options) {
  BatchCutOptions with = options;
  with.peak_limit = available;
  for (const double interval : {options.interval, 0.0}) {
    with.interval = interval;
    for (const double limit : {available / static_cast<double>(options.stages), available}) {
      with.stored_limit = limit;
      for (std::size_t mode = 0; mode < modes.size(); ++mode)
        if (std::optional<BatchCut> cut = cut_batch(samples, order, modes[mode].costs, with)) return {std::move(*cut), mode, limit};
    }
    if (options.interval == 0) break;
  }
  fail_no_cut(samples, modes, with);
}

}  // namespace penstock
