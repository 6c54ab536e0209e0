// SPDX-License-Identifier: Apache-2.0
// Which task of the cut does each op, and what crosses between tasks: the first half of cut() (stage/stages.h), whose second half makes
// bundles and graphs of it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "stage/stages.h"

namespace penstock {

// The loop's body, and what is looked up in it.
struct Body {
  const Op& loop;
  const Graph& graph;
  IdVector<ValueId, OpId> producer;  // of each value
  std::map<std::string, StageId, std::less<>> stage_number;
  std::size_t split = 0;             // so many inputs are parts of micro-batches
  IdVector<OpId, bool> dissolved{};  // loop results that are joins over several stages: each operand is a term of its own

  const Op* op_of(ValueId value) const {
    const OpId op = producer[value];
    return op ? &graph.ops[op] : nullptr;
  }
  StageId stage_of(const Op& op) const {
    const auto found = stage_number.find(op.stage);
    return found == stage_number.end() ? StageId() : found->second;
  }
};

// Where ops stand among the collectives of their stage and kind, which part them into several tasks: at each level, which is the number of
// collectives on the way to it, first what its own collectives need, then each of these alone, then the rest, which runs meanwhile.
struct Segment {
  std::int32_t level = 0;
  enum class Part : std::uint8_t { needed, collective, rest } part = Part::rest;
  OpId op{};  // of a collective
  auto operator<=>(const Segment&) const = default;
};

// A task before its graph is built: which ops it runs, what it reads from elsewhere and gives away.
struct TaskPlan {
  StageId stage{};
  Kind kind = Kind::F;
  Segment segment{};
  std::set<ValueId> imports{};     // values of the body: loop inputs, and results of other tasks
  std::vector<ValueId> exports{};  // values other tasks read
  std::vector<OpId> ops{};
  StageTaskId whole{};  // of a light F: the F in whose place it stands
};

struct TaskPlans {
  IdVector<StageTaskId, TaskPlan> tasks;
  IdVector<OpId, StageTaskId> of_op;  // none: constant or dissolved
  IdVector<OpId, bool> retaken;       // each task does anew that reads what they make
  std::map<std::tuple<StageId, Kind, Segment>, StageTaskId> number;
  std::map<ValueId, std::set<StageTaskId>> readers;  // of values that cross
  std::map<StageTaskId, StageTaskId> light, again;   // of an F of a stage that recomputes: its light F and its R
  // By value that is summed in place: what other tasks than its own add to it.
  std::map<ValueId, std::map<StageTaskId, std::vector<ValueId>>> sums;

  StageTaskId add(StageId stage, Kind kind, const Segment& segment) {
    const auto [it, added] = number.try_emplace({stage, kind, segment}, tasks.size());
    if (added) tasks.push_back({stage, kind, segment});
    return it->second;
  }
  // The last task of a stage and kind; none: there is none.
  StageTaskId last(StageId stage, Kind kind) const {
    StageTaskId out;
    for (auto it = number.lower_bound({stage, kind, Segment{0, Segment::Part::needed, OpId()}}); it != number.end(); ++it) {
      const auto& [of, of_kind, segment] = it->first;
      if (of != stage || of_kind != kind) break;
      out = it->second;
    }
    return out;
  }
  StageTaskId of(const Body& body, ValueId value) const {
    const OpId op = body.producer[value];
    return op ? of_op[op] : StageTaskId();
  }
};
// One term of a loop result: what a task adds to its accumulator. Several values of one task are added up in the task.
struct Term {
  StageTaskId task;
  std::vector<ValueId> values;
};

Body body_of(const StagedStep& step);

struct PlannedTasks {
  TaskPlans plans;
  std::vector<std::vector<Term>> terms;  // by loop result
};
// `split`, `recomputed`: by stage, as cut() takes them.
PlannedTasks plan_tasks(const Body& body, const std::vector<bool>& split, const std::vector<bool>& recomputed, const CutOptions& options);

// Whether tasks of the value's own stage (or else of others) read it.
bool is_read(const Body& body, const TaskPlans& plans, ValueId value, bool by_own_stage);

}  // namespace penstock
