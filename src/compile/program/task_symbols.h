// SPDX-License-Identifier: Apache-2.0
// Computes in symbols what a task gives, op by op, so that equal ops on equal operands have equal results in whatever tasks they stand.
#pragma once

#include <span>
#include <vector>

#include "penstock/graph.h"
#include "program/symbol.h"

namespace penstock::checks {

// A task's graph as lists of numbers, made once for all runs of the task.
class TaskSymbols {
 public:
  explicit TaskSymbols(const Graph& graph);

  // The outputs' symbols, from the inputs'. `values` is room for the symbols of all values, which calls may share.
  void run(std::span<const Symbol> inputs, std::vector<Symbol>& values, std::vector<Symbol>& outputs) const;

 private:
  // An op reads the next `operands` entries of `operands_`, and defines as many values as it has results, in order.
  struct Step {
    Hash begin;  // of the op itself, whatever it reads
    std::int32_t operands = 0, results = 0;
  };

  std::vector<Step> steps_;
  std::vector<std::int32_t> operands_, results_, inputs_, outputs_;  // positions in Graph::values
  std::size_t size_ = 0;                                             // of Graph::values
};

}  // namespace penstock::checks
