// The samples of a batch by their lengths, and what a micro-batch of some of them is padded to.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Tokens. A sample of a decoder-only model has no target; where any sample of a batch has one, the model has an encoder and a decoder.
struct SampleLengths {
  std::int64_t input = 0, target = 0;

  bool operator==(const SampleLengths&) const = default;
};

// So many samples, each padded to these lengths.
struct BatchShape {
  std::int64_t samples = 0, input = 0, target = 0;

  auto operator<=>(const BatchShape&) const = default;
};

// Throws Error for no samples, for an input that is empty or longer than `context` (0: any length), and for targets that are all empty
// though the model has a decoder: there would be nothing to learn.
void check_samples(const std::vector<SampleLengths>& samples, bool decoder, std::int64_t context = 0);

// The samples with lengths rounded up to multiples of `round`, which is at least 1. A decoder gets two tokens ahead of the target
// (DynaPipe's authors' code).
std::vector<SampleLengths> padded(std::vector<SampleLengths> samples, bool decoder, std::int64_t round);

// The order (indices) in which DynaPipe cuts: longest first by input, then target, then index.
std::vector<std::size_t> longest_first(const std::vector<SampleLengths>& samples);

}  // namespace penstock
