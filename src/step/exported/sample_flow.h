// SPDX-License-Identifier: Apache-2.0
// The relation of the values of a micro-batch's graph to those of the whole batch.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// Which inputs of a joint graph say how much there is in a batch.
struct CountedInputs {
  std::vector<std::string> split;  // cut into micro-batches
  std::vector<std::string> fixed;  // the same for all micro-batches, and neither trained nor changed: constants, what is read whole
};

// The inputs that a value is made of.
enum class Source : std::uint8_t {
  fixed,      // nothing that differs between micro-batches
  parameter,  // parameters too
  data,       // the micro-batch's data, and what is fixed
  both,
};
Source joined(Source a, Source b);

// One value. With m equal micro-batches the whole batch's value is m^degree times
//   fixed: that of any micro-batch
//   rows:  the rows of all micro-batches, one behind the other: `rows` says along which dim the samples lie
//   term:  the mean of the micro-batches' (so a sum over the samples has degree 1, a mean degree 0)
// and nothing is known of what is `own`: each micro-batch has its own.
struct SampleFlow {
  enum class Kind : std::uint8_t { fixed, rows, term, own };
  Kind kind = Kind::fixed;
  Source source = Source::fixed;
  Layout rows = {};
  int degree = 0;
  int literals = 0;      // what numbers that grow with the samples have added to the degree
  bool counted = false;  // fixed because it is taken from the whole batch: it depends on a FlowSum

  bool is(Kind other) const { return kind == other; }
};

// A sum, or a mean, over the samples that is made of data alone: it is taken from the whole batch.
struct FlowSum {
  ValueId value;
  bool mean = false;
};

// Where the whole batch's loss is another one than that of its micro-batches.
struct FlowFinding {
  enum class Kind : std::uint8_t {
    across,     // the op reads along the samples as along a sequence
    mixes,      // the op reads several samples
    places,     // the op reads another value for each place in the micro-batch
    nonlinear,  // the op is no linear one, and reads a sum over the samples
    unequal,    // the op adds what is a sum over the samples and what is none
    size,       // the op divides or multiplies by a number that may be that of the samples
    grows,      // the op has a number that depends on how many samples there are
    unknown,    // nobody knows what the op does
  };
  Kind kind;
  OpId op;
};

// The form in which an op takes a number that is counted: the whole batch's; a micro-batch's share of it, the m-th part of a divisor, m
// times a factor; or its own, as what it divides is known as its own alone, or as parameters are in the number, whose gradients have no
// shares.
enum class Taken : std::uint8_t { whole, share, own };

struct SampleFlows {
  IdVector<ValueId, SampleFlow> values;  // of the forward ops that the loss depends on, and the inputs
  std::vector<FlowSum> sums;             // in order
  std::vector<FlowFinding> findings;
  // The ops that multiply or divide by a number that is counted, and what they take of it. Where that is not the whole batch's, the degree
  // of what they give is one less, so that sums become means.
  std::map<OpId, Taken> boundaries;
};

// By op: how its number, what it multiplies or divides by or is, grows with the samples; none: otherwise than as they or their reciprocal.
using NumberGrowth = std::map<OpId, std::optional<int>>;

struct FlowOptions {
  std::int64_t samples = 1;
  // The growth of ops' numbers with the samples. None: nobody knows, and a sum that is divided by a multiple of the samples counts as a
  // mean.
  std::optional<NumberGrowth> literals = {};
  bool shares = true;           // whether sums, and rows, are divided by a micro-batch's share
  std::set<OpId> flipped = {};  // the boundaries at which it is the other way round
};

// Follows the samples through the forward ops that output `loss` depends on. Works on renamed graphs (rename.h).
SampleFlows sample_flows(const Graph& joint, const CountedInputs& inputs, std::size_t loss, const FlowOptions& options);

}  // namespace penstock
