// SPDX-License-Identifier: Apache-2.0
// A task of the code outside the loop, under construction: what of the step's ops it runs, and the instances that it reads.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lower/draft.h"

namespace penstock {

struct InstancePart {
  InstanceId instance;
  std::int32_t part = 0;
};
// The instance that a task reads a value from; none: it makes the value anew.
using FindInstance = std::function<std::optional<InstancePart>(ValueId)>;

class Fragment {
 public:
  // Both must outlive the fragment: ops and types of the step, and who makes each value.
  Fragment(const Graph& step, const IdVector<ValueId, OpId>& producer) : step_(step), producer_(producer) {}

  Graph graph;
  std::vector<InstanceId> reads;  // their parts, in order, are the graph's inputs

  // The step's value, here: read, or made by a copy of its op after what that needs.
  ValueId need(const Draft& draft, ValueId value, const FindInstance& find);
  // A copy of the step's op, once.
  void copy(const Draft& draft, const Op& op, const FindInstance& find);

 private:
  ValueId import(const Draft& draft, const InstancePart& origin);

  const Graph& step_;
  const IdVector<ValueId, OpId>& producer_;
  std::unordered_map<ValueId, ValueId> local_;         // value of the step: here
  std::unordered_map<InstanceId, std::size_t> first_;  // of a read instance's parts: place in the graph's inputs
};

}  // namespace penstock
