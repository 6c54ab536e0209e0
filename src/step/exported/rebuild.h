// SPDX-License-Identifier: Apache-2.0
// Makes a graph anew, op by op, with other ops in some places.
#pragma once

#include "ops/builder.h"
#include "penstock/graph.h"

namespace penstock {

class Rebuild {
 public:
  // Begins with the inputs. What ops without a sequence number become is numbered behind the others.
  explicit Rebuild(const Graph& from);

  // The tensor that stands for a value of the old graph; none until its op is made.
  Tensor& operator[](ValueId old) { return made_[old]; }
  // The ops that are made next carry this one's marks.
  void mark(const Op& op) { builder.marks = {op.stage, op.origin, op.phase, op.sequence}; }
  // Makes the op as it stands.
  void copy(const Op& op);
  // The graph with the old one's outputs, without ops whose results nobody reads.
  Graph finish();

  Builder builder;

 private:
  const Graph& from_;
  IdVector<ValueId, Tensor> made_;  // by the old graph's values
};

}  // namespace penstock
