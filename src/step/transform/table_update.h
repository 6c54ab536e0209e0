// SPDX-License-Identifier: Apache-2.0
// The ops behind a step's loop that update a table of embeddings, where they could as well update some of its rows.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/op.h"

namespace penstock {

struct TableUpdate {
  std::vector<ValueId> gradients;  // the gradient, and what is made of it that is zero where it is: these have its shape
  std::vector<OpId> ops;           // go element by element from those and from `states` ...
  std::vector<InputId> states;     // ... to the next values of the table and of all of its shape that is kept of it
  std::string obstacle;            // why the same cannot be done to some of the rows; "": it can
};

// Whether the op is the gradient of a table's rows, or bags of rows, that were looked up.
bool is_lookup_gradient(const Op& op);

// Whether the op's result is zero wherever this operand is, which is a factor, a dividend, negated, cast or cut.
bool keeps_zeros(const Op& op, std::size_t operand = 0);

// The update by a gradient that the step's loop gives.
TableUpdate update_of_table(const Graph& step, OpId loop, ValueId gradient);

}  // namespace penstock
