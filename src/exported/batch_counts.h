// Losses that divide by a number that the data says, as the mean over the targets that count does.
#pragma once

#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

// Which inputs of a joint graph say how much there is in a batch.
struct CountedInputs {
  std::vector<std::string> split;  // cut into micro-batches
  std::vector<std::string> fixed;  // the same for all micro-batches, and neither trained nor changed: constants, what is read whole
};

// A joint graph that divides by the whole batch's numbers.
struct BatchCounts {
  Graph joint;     // has an input more for each divisor, behind the others: "count.0", ...: a scalar of the divisor's dtype
  Graph counts;    // from one micro-batch's inputs, of those names, to what has to be added up over the micro-batches
  Graph divisors;  // from these sums, "sum.0", ..., to the whole batch's divisors; it may read fixed inputs too
};

// The mean over m micro-batches of sum_i / count_i is not the batch's sum / count where the counts differ; that of sum_i / (count / m) is.
// So where the loss is divided by a scalar that is made of the micro-batch's data alone, the scalar is taken from the new inputs: "count.i"
// is the whole batch's divisor i over m. Works on renamed graphs (rename.h), in which such means are divisions; output `loss` is the loss.
// Without divisors the two other graphs have no outputs.
// Throws Error, naming op and module, for a divisor that is no function of sums of data, and where it divides what is no sum: there it
// cannot be told what the whole batch's loss is.
BatchCounts batch_counts(const Graph& joint, const CountedInputs& inputs, std::size_t loss = 0);

}  // namespace penstock
