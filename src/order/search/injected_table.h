// SPDX-License-Identifier: Apache-2.0
// List schedules of micro-batches that differ: they enter the pipeline in a given order, and a policy says what an actor prefers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "penstock/search.h"

namespace penstock {

struct InjectionPolicy {
  enum class Prefer : std::uint8_t { backward, forward, in_turn };  // of an F and a backward that can both start
  Prefer prefer = Prefer::backward;
  bool split = false;  // backwards are I and W
  // Actor a of p holds at most ceil(ahead * (p - a)) micro-batches that have not come back. 1 is 1F1B's warm-up.
  double ahead = 1;
  int backlog = 0;  // W of an actor that may wait for idle time; more of them come before all else
};
std::string text(const InjectionPolicy& policy);
// The policies that are worth a try where backwards may be whole, or split.
std::vector<InjectionPolicy> injection_policies(bool whole, bool split);

// The table of a chain with one stage on each actor, in which every actor runs F, and what can run of the rest, in the order of injection
// (a permutation of the micro-batches). An F waits while its micro-batch would take the actor above the memory limit. It always finishes
// where each micro-batch alone keeps the limit: the oldest that lives is held up by none.
Schedule injected_table(const SearchProblem& problem, const std::vector<std::size_t>& order, const InjectionPolicy& policy);

}  // namespace penstock
