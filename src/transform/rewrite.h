// A new graph out of another one's parts, and what became of each value.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace penstock {

class Rewrite {
 public:
  // Takes over name, state and output names.
  explicit Rewrite(const Graph& from);

  // The new value that stands for the old one; none until it is copied.
  ValueId& operator[](ValueId old) { return map_[old.index()]; }
  void copy_input(ValueId old);
  // Appends the op with operands as they are mapped and fresh results.
  Op& copy(const Op& op);
  // The new value of an old one's type and hint.
  ValueId fresh(ValueId old);
  // Outputs as they are mapped; the graph is complete then.
  Graph finish();

  Graph graph;

 private:
  const Graph& from_;
  std::vector<ValueId> map_;
};

}  // namespace penstock
