// SPDX-License-Identifier: Apache-2.0
// Builds a new graph out of another one's parts, and keeps which new value each old one became.
#pragma once

#include <string_view>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

class Rewrite {
 public:
  // Takes over the name, the state and the output names.
  explicit Rewrite(const Graph& from);

  // The same with all inputs copied.
  static Rewrite with_inputs(const Graph& from);

  // The new value that stands for the old one; none until it is copied.
  ValueId& operator[](ValueId old) { return map_[old]; }
  void copy_input(ValueId old);
  // Appends the op, with operands as they are mapped and fresh results.
  Op& copy(const Op& op);
  // Appends a loop with another body.
  Op& copy(const Op& loop, Graph body);
  // A new value with the old one's type and name hint.
  ValueId fresh(ValueId old);
  // Sets the outputs as they are mapped; the graph is complete then.
  Graph finish();

  Graph graph;

 private:
  const Graph& from_;
  IdVector<ValueId, ValueId> map_;
};

// Adds an op with one result that is marked as `marks` is, and returns the result.
ValueId add_like(Graph& graph, const Op& marks, std::string_view name, std::vector<ValueId> operands, Attributes attributes,
                 TensorType type);

}  // namespace penstock
