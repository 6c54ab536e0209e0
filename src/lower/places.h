// Where the code outside the loop runs, and where state lives: decided before any task of it is built.
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
  std::int32_t actor = -1;
  std::int32_t depth = 0;
  std::int32_t update = -1;  // the stage
  bool ahead = false;        // the second task of a U: what updates ahead, or needs to know of that
  bool alone = false;        // the second task of a depth: what no other actor waits for
  auto operator<=>(const TaskGroup&) const = default;
};

struct Places {
  Graph graph;  // the step without its loop, whose results are partial sums and add_n of these
  std::unordered_map<std::int32_t, LoopEnds::Partial> partial{};  // values that the loop leaves behind
  std::map<TaskGroup, std::vector<std::size_t>> ops{};            // that depend on the loop's results

  // Of each value:
  std::vector<OpId> producer{};
  std::vector<std::int32_t> input_index{};  // of the step; -1: it is computed
  std::vector<bool> dependent{};            // on the loop's results
  std::vector<TaskGroup> group{};           // where it is dependent
  std::vector<Member> member{};             // where devices hold it in shares
  std::vector<bool> is_term{};              // each device has a term of it, to be summed behind its group

  // Of each state:
  std::vector<std::int32_t> home{};               // the actor that owns it
  std::vector<std::set<std::int32_t>> holders{};  // the actors that read it, and its home
  std::vector<bool> in_place{};                   // the group that makes its next value writes it over the present one
  std::map<std::int32_t, std::size_t> early{};    // value written over a state before its last version: the state

  const TensorType& type(ValueId v) const { return graph.type(v); }
  bool in_shares(ValueId v) const { return member[v.index()].block >= 0; }
};

// Decides them. `graph` differs from the step in more: an update ahead that gains nothing is one at the end (lower/ahead.h), and terms that
// arise in one group are added up there.
Places find_places(const Lowering& lowering);

}  // namespace penstock
