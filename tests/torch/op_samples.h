// SPDX-License-Identifier: Apache-2.0
// Every op at small sizes, most of them odd, with several settings of its attributes.
#pragma once

#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock::test {

// An operand: its type and the values that it may have.
struct SampleOperand {
  TensorType type;
  double low = -1, high = 1;
};

struct OpSample {
  Op op;  // operands and results are numbered from 0
  std::vector<SampleOperand> operands;
  std::vector<TensorType> results;

  std::vector<TensorType> operand_types() const;
  std::string text() const;
};

// All ops but `accumulate`, in f64.
std::vector<OpSample> op_samples();

}  // namespace penstock::test
