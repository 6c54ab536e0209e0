// SPDX-License-Identifier: Apache-2.0
#include "batch/lengths.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

namespace {

std::int64_t rounded_up(std::int64_t length, std::int64_t round) {
  return (length + round - 1) / round * round;
}

}  // namespace

BatchLoad padded_load(const BatchShape& shape) {
  const auto n = static_cast<double>(shape.samples), e = static_cast<double>(shape.input), d = static_cast<double>(shape.target);
  return {shape, n * e, n * d, n * e * e, n * d * d, n * e * d, {}};
}

BatchLoad ragged_load(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& of_row, std::int64_t round, bool decoder) {
  BatchLoad load;
  for (const std::size_t i : of_row) {
    const auto e = static_cast<double>(samples[i].input), d = static_cast<double>(samples[i].target);
    load.shape.input += samples[i].input;
    load.shape.target += samples[i].target;
    load.input_squares += e * e;
    load.target_squares += d * d;
    load.products += e * d;
  }
  load.shape.input = std::max(rounded_up(load.shape.input, round), round);
  load.shape.target = std::max(rounded_up(load.shape.target, round), decoder ? round : 0);
  load.input = static_cast<double>(load.shape.input);
  load.target = static_cast<double>(load.shape.target);
  return load;
}

void check_samples(const std::vector<SampleLengths>& samples, bool decoder, std::int64_t context) {
  if (samples.empty()) throw Error("the batch has no samples");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto [input, target] = samples[i];
    if (input < 1 || target < 0)
      throw Error(concat("sample ", i, " has ", input < 1 ? "an input" : "a target", " of length ", input < 1 ? input : target), {},
                  "leave the sample out");
    if (const std::int64_t longest = std::max(input, target); context > 0 && longest > context)
      throw Error(concat("sample ", i, " has length ", longest, ", and the context is ", context), {}, "cut it, or leave it out");
  }
  if (decoder && std::all_of(samples.begin(), samples.end(), [](const SampleLengths& s) { return s.target == 0; }))
    throw Error("the target of every sample is empty: the batch has nothing to learn");
}

std::vector<SampleLengths> padded(std::vector<SampleLengths> samples, bool decoder, std::int64_t round) {
  constexpr std::int64_t kDecoderStart = 2;
  for (SampleLengths& sample : samples)
    sample = {rounded_up(sample.input, round), decoder ? rounded_up(sample.target + kDecoderStart, round) : 0};
  return samples;
}

std::vector<std::size_t> longest_first(const std::vector<SampleLengths>& samples) {
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) { return std::tuple(samples[i].input, samples[i].target, i); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
  return order;
}

SamplesByLength::SamplesByLength(const std::vector<SampleLengths>& samples) {
  for (std::size_t i = samples.size(); i-- > 0;) of_length_[samples[i].input].push_back(i);
}

std::size_t SamplesByLength::take(std::int64_t length) {
  std::vector<std::size_t>& left = of_length_.at(length);
  const std::size_t sample = left.back();
  left.pop_back();
  return sample;
}

}  // namespace penstock
