// SPDX-License-Identifier: Apache-2.0
// Facts that follow from a task's graph alone, found when it is first asked for and then kept with the graph (penstock/task_graph.h).
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "penstock/task_graph.h"
#include "program/memory_plan.h"
#include "program/task_symbols.h"

namespace penstock {

// A value that the first thread to ask for it makes, while others wait. A maker that throws is asked again.
template <class T>
class FoundOnce {
 public:
  template <class Make>
  const T& get(const Make& make) const {
    std::call_once(once_, [&] { value_.emplace(make()); });
    return *value_;
  }

 private:
  mutable std::once_flag once_;
  mutable std::optional<T> value_;
};

struct GraphFacts {
  FoundOnce<std::uint64_t> structural_hash, text_hash;
  FoundOnce<bool> verified;
  FoundOnce<ScratchPlan> scratch;
  FoundOnce<double> work;   // lower/execution.h
  FoundOnce<double> flops;  // program/flops.h
  FoundOnce<checks::TaskSymbols> symbols;
};

// A hash of all that the graph's text says: unlike the structural hash also of names and marks.
std::uint64_t text_hash(const TaskGraph& graph);

}  // namespace penstock
