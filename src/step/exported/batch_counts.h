// SPDX-License-Identifier: Apache-2.0
// Losses that take a number from the whole batch's data, as the mean over the targets that count does.
#pragma once

#include <string>
#include <vector>

#include "exported/sample_flow.h"
#include "penstock/graph.h"

namespace penstock {

// A joint graph that reads the whole batch's numbers.
struct BatchCounts {
  Graph joint;                // has an input more for each number, behind the others: "count.0", ...: of the number's type
  std::vector<Graph> counts;  // from one micro-batch's inputs, of those names, to what has to be added up over the micro-batches:
                              // "sum.0", ..., in order; each of them may read the whole batch's sums of those before
  std::vector<bool> means;    // of each sum: it is the mean of the micro-batches' instead
  Graph divisors;             // from these sums to the whole batch's numbers; it may read fixed inputs too
  // The powers of m that counts are divided by: with m micro-batches, count.i is number i times m^-shares[i]: 1 is a micro-batch's share of
  // a divisor.
  std::vector<int> shares;
  // Messages for the user: the numbers that the loss takes of each micro-batch by itself.
  std::vector<std::string> notes;
};

struct CountOptions {
  std::size_t loss = 0;                       // which output it is
  bool loss_is_sum = false;                   // the losses of micro-batches are added up; else their mean is taken
  std::optional<NumberGrowth> literals = {};  // FlowOptions
};

// The mean over m micro-batches of sum_i / count_i is not the batch's sum / count where the counts differ; that of sum_i / (count / m) is.
// Therefore each sum over samples that is made of the micro-batch's data alone is the whole batch's wherever the loss depends on it, and
// what is computed of such sums is read from the new inputs; where a sum or a mean is divided by it, so much of it that the mean of the
// micro-batches' losses, or their sum, is the whole batch's loss. What parameters are in cannot be had so: where the loss is not linear in
// a sum of that, `notes` says so. Works on renamed graphs (rename.h), in which means over what counts are divisions. Without such numbers
// the other graphs have no outputs. Throws Error, naming op and module, for a divisor that is no function of sums of data, and where the
// graph reads along the samples as along a sequence.
BatchCounts batch_counts(const Graph& joint, const CountedInputs& inputs, const CountOptions& options = {});

}  // namespace penstock
