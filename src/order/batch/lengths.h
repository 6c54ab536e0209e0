// SPDX-License-Identifier: Apache-2.0
// The samples of a batch by their lengths, and what a micro-batch of some of them is padded to.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "penstock/compile.h"

namespace penstock {

// Tokens. A sample of a decoder-only model has no target; where any sample of a batch has one, the model has an encoder and a decoder.
struct SampleLengths {
  std::int64_t input = 0, target = 0;

  bool operator==(const SampleLengths&) const = default;
};

// The shape of a micro-batch: so many samples, each padded to these lengths; or, with `samples` 0, one row of inputs and one of targets of
// these lengths, in which all samples of a micro-batch stand one after the other. `images`: how many of them all samples have, and `part`:
// how many of these the encoder of images works on at once, at most. `slices`: the lengths of the slices into which the row is cut, in a
// step of which some rows are cut; none: no row of the step is. `degree`: how many members of the mesh's first axis, which are a group,
// compute it together; 0: all. `recompute`: how much its backwards compute again, where that is more than the run's options say. `again`:
// by stage of a micro-batch of this shape, slices counted, how many of its layers the backward computes again, the first ones; none: none.
struct BatchShape {
  std::int64_t samples = 0, input = 0, target = 0;
  std::int64_t images = 0, part = 1;
  std::vector<std::int64_t> slices = {};
  int degree = 0;
  Recompute recompute = Recompute::none;
  std::vector<int> again = {};
  bool is_ragged() const { return samples == 0; }

  auto operator<=>(const BatchShape&) const = default;
};

// The sums of a micro-batch's tokens, padding included: its work follows from them. Of a group of devices, what each of them has.
struct BatchLoad {
  BatchShape shape;
  double input = 0, target = 0;                  // tokens
  double input_squares = 0, target_squares = 0;  // sums of the squares of the samples' lengths
  double products = 0;                           // sum of input times target
  // One load for each of the shape's slices. It has the slice's tokens, and in place of squares what these grow by: (c + s)^2 - c^2 for s
  // tokens behind c others of their sample.
  std::vector<BatchLoad> slices = {};
  double together = 0;  // time that a stage's devices wait for each other, where they are a group: in F, and twice that in the backward
  bool beside = false;  // takes its actor no time: another group of its devices computes what takes longer meanwhile
};
// The load of samples that are all as long as the shape says.
BatchLoad padded_load(const BatchShape& shape);
// The load of samples that share one row of a multiple of `round` tokens (and one row of targets, where a decoder reads them): the shape
// {0, input, target}. Padding behind the last sample attends to nothing. No row is empty, but that of targets where there is no `decoder`.
BatchLoad ragged_load(const std::vector<SampleLengths>& samples, const std::vector<std::size_t>& of_row, std::int64_t round,
                      bool decoder = false);

// Throws Error for no samples, for an input that is empty or longer than `context` (0: any length), and for targets that are all empty
// though the model has a decoder: there would be nothing to learn.
void check_samples(const std::vector<SampleLengths>& samples, bool decoder, std::int64_t context = 0);

// The samples with lengths rounded up to multiples of `round`, which is at least 1. A decoder gets two tokens ahead of the target
// (DynaPipe's authors' code).
std::vector<SampleLengths> padded(std::vector<SampleLengths> samples, bool decoder, std::int64_t round);

// Which samples sequences of some lengths of inputs are: of equal lengths in their order.
class SamplesByLength {
 public:
  explicit SamplesByLength(const std::vector<SampleLengths>& samples);
  // The next of this length, of which there must be one.
  std::size_t take(std::int64_t length);

 private:
  std::map<std::int64_t, std::vector<std::size_t>> of_length_;  // the last is taken first
};

// The order (indices) in which DynaPipe cuts: longest first by input, then target, then index.
std::vector<std::size_t> longest_first(const std::vector<SampleLengths>& samples);

}  // namespace penstock
