// SPDX-License-Identifier: Apache-2.0
// Where the code after the loop runs, and where state lives: decided before any task of it is built.
#pragma once

#include <compare>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "lower/draft.h"

namespace penstock {

// Ops that run together, as one task: after the loop, or, with a stage, at that stage's U.
struct TaskGroup {
  ActorId actor;
  std::int32_t depth = 0;
  StageId update{};
  bool ahead = false;  // the second task of a U: what updates ahead, or needs to know of that
  bool alone = false;  // the second task of a depth: what no other actor waits for
  auto operator<=>(const TaskGroup&) const = default;
};

// The step without its loop, whose results are partial sums and add_n of these.
struct Outside {
  Graph graph;
  std::unordered_map<ValueId, PartialSum> partial{};  // values that the loop leaves behind
};

// Facts of each value of an Outside that are known before its ops have places.
struct ValueFacts {
  IdVector<ValueId, OpId> producer{};
  IdVector<ValueId, InputId> input{};    // of the step; none: it is computed
  IdVector<ValueId, bool> dependent{};   // on the loop's results
  IdVector<ValueId, TaskGroup> group{};  // of partial sums, and what is flat or a term: where the partial sum is
  IdVector<ValueId, Layout> layout{};    // over the devices of its actor: whole, flat, or a term, to be summed behind its group
  IdVector<ValueId, bool> arrives{};     // a collective along an axis makes it, behind its operand's group
};

// By state.
struct StatePlaces {
  IdVector<InputId, ActorId> home;               // the actor that owns it; none: not decided yet
  IdVector<InputId, std::set<ActorId>> holders;  // the actors that read it, and its home
  IdVector<InputId, std::set<StageId>> readers;  // stages whose tasks read it
};

struct Places {
  Outside
      outside;  // an update ahead that gains nothing is one at the end (lower/ahead.h), terms that arise in one group are added up there
  ValueFacts value;                                           // `group`: of all that depends on the loop
  std::map<TaskGroup, std::vector<std::size_t>> ops;          // that depend on the loop's results
  std::map<TaskGroup, std::vector<std::size_t>> collectives;  // ops that are collectives along axes, behind the groups of their operands
  StatePlaces state;
  // By state: the group that makes its next value writes it over the present one.
  IdVector<InputId, bool> in_place;
  std::map<ValueId, InputId> early;  // value written over a state before its last version: the state

  const Graph& graph() const { return outside.graph; }
  const TensorType& type(ValueId v) const { return outside.graph.type(v); }
  const TaskGroup& group(ValueId v) const { return value.group[v]; }
  bool is_flat(ValueId v) const { return value.layout[v].is_flat(); }
  bool dependent(ValueId v) const { return value.dependent[v]; }
};

// The block, and the place in it, of a value that lies flat.
Member member_of(const Draft& draft, const Places& places, ValueId flat);

Places find_places(const LowerInput& input, const Draft& draft);

}  // namespace penstock
