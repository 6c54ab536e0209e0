// SPDX-License-Identifier: Apache-2.0
#include "batch/layer_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/invariant.h"

namespace penstock {
namespace {

// Processors that are filled one after the other, none above the limit.
struct Filling {
  std::vector<std::vector<LayerPart>> processors = {{}};
  double load = 0;  // of the last one

  std::pair<std::size_t, double> used() const { return {processors.size(), load}; }
};

using Maybe = std::optional<Filling>;

// None: the work alone is above the limit.
Maybe with(Maybe filling, LayerPart part, double time, double limit) {
  if (!filling || time > limit) return {};
  if (filling->load + time > limit) {
    filling->processors.emplace_back();
    filling->load = 0;
  }
  if (time > 0) filling->processors.back().push_back(part);
  filling->load += time;
  return filling;
}

// Puts the part that does not fit on the next processor.
Maybe with_divided(Maybe filling, LayerPart part, double time, double limit) {
  if (!filling || filling->load + time <= limit) return with(std::move(filling), part, time, limit);
  const double fits = limit - filling->load;
  if (fits < 1e-9 * time) return with(std::move(filling), part, time, limit);
  filling->processors.back().push_back({part.work, part.layer, fits / time});
  filling->load = limit;
  return with(std::move(filling), {part.work, part.layer, 1 - fits / time}, time - fits, limit);
}

// Fewer processors, or as many with less on the last one, can do what comes as well: what is free may stay free.
Maybe with_backward(const Maybe& filling, const LayerTimes& times, std::size_t layer, BackwardSplit backward, double limit) {
  const LayerPart input{LayerWork::input, static_cast<int>(layer)}, weight{LayerWork::weight, static_cast<int>(layer)};
  const double of_input = times.input[layer], of_weight = times.weight[layer];
  if (backward == BackwardSplit::whole) {
    Maybe both = with(filling, weight, of_input + of_weight, limit);
    if (both && of_input > 0) both->processors.back().push_back(input);
    return both;
  }
  const auto with_input = [&](Maybe to) {
    return backward == BackwardSplit::divided ? with_divided(std::move(to), input, of_input, limit)
                                              : with(std::move(to), input, of_input, limit);
  };
  Maybe weight_first = with_input(with(filling, weight, of_weight, limit)),
        input_first = with(with_input(filling), weight, of_weight, limit);
  if (!weight_first || !input_first) return weight_first ? weight_first : input_first;
  return weight_first->used() < input_first->used() ? weight_first : input_first;
}

Maybe filled(const LayerTimes& times, std::size_t processors, BackwardSplit backward, double limit) {
  Maybe out = Filling();
  for (std::size_t layer = 0; layer < times.forward.size(); ++layer)
    out = with(std::move(out), {LayerWork::forward, static_cast<int>(layer)}, times.forward[layer], limit);
  for (std::size_t layer = times.forward.size(); layer-- > 0;) out = with_backward(out, times, layer, backward, limit);
  if (out && out->processors.size() > processors) return {};
  return out;
}

double load_of(const std::vector<LayerPart>& parts, const LayerTimes& times) {
  const std::vector<double>* of[] = {&times.forward, &times.input, &times.weight};
  return std::accumulate(parts.begin(), parts.end(), 0.0, [&](double sum, const LayerPart& part) {
    return sum + part.share * (*of[static_cast<std::size_t>(part.work)])[static_cast<std::size_t>(part.layer)];
  });
}

}  // namespace

LayerSplit split_layers(const LayerTimes& times, int processors, BackwardSplit backward) {
  double total = 0;
  for (const std::vector<double>* of : {&times.forward, &times.input, &times.weight})
    total = std::accumulate(of->begin(), of->end(), total);
  double low = total / processors, high = total * (1 + 1e-12);  // sums in another order may be larger
  while (high - low > 1e-13 * total) {
    const double limit = (low + high) / 2;
    (filled(times, static_cast<std::size_t>(processors), backward, limit) ? high : low) = limit;
  }
  const double neat = std::round(high * 1e9) / 1e9;  // of most lists the least is a short number
  Maybe found = filled(times, static_cast<std::size_t>(processors), backward, neat);
  if (!found) found = filled(times, static_cast<std::size_t>(processors), backward, high);
  invariant(found.has_value(), "one processor can do everything");
  LayerSplit out{.processors = found->processors, .mean = total / processors};
  out.processors.resize(static_cast<std::size_t>(processors));
  for (const auto& parts : out.processors) out.largest = std::max(out.largest, load_of(parts, times));
  return out;
}

}  // namespace penstock
