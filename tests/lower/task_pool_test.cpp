// SPDX-License-Identifier: Apache-2.0
// Programs made one after the other share the tasks that are the same in all their text says.
#include "lower/task_pool.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

Graph graph_of(double factor, const std::string& origin = "h.0") {
  Graph graph;
  graph.name = "after.0";
  const ValueId x = graph.add_input({DType::f32, {4}}, "x");
  Op& op = graph.ops.emplace_back();
  op.name = "mul";
  op.operands = {x};
  op.results = {graph.add_value({DType::f32, {4}})};
  op.attributes = {{"other", factor}};
  op.origin = origin;
  graph.outputs = op.results;
  return graph;
}

// The draft's only task as the pool leaves it.
TaskGraph shared(TaskPool& pool, const TaskGraph& graph) {
  Draft draft;
  draft.tasks.push_back({"after.0", *graph, 0});
  pool.share(draft);
  return draft.tasks[TaskId(0)].graph;
}

TEST(TaskPool, GivesWhatAnEarlierDraftHad) {
  TaskPool pool;
  const TaskGraph first = shared(pool, graph_of(2));
  EXPECT_EQ(shared(pool, graph_of(2)).shared(), first.shared());
  EXPECT_NE(shared(pool, graph_of(3)).shared(), first.shared());
}

TEST(TaskPool, TellsMarksApartThoughTheyDoNotChangeWhatIsComputed) {
  TaskPool pool;
  const TaskGraph first = shared(pool, graph_of(2)), other = shared(pool, graph_of(2, "h.1"));
  EXPECT_NE(other.shared(), first.shared());
  EXPECT_EQ(other->ops[OpId(0)].origin, "h.1");
}

TEST(TaskPool, ForgetsWhatNoDraftHasHadForLong) {
  TaskPool pool;
  std::weak_ptr<const Graph> first = shared(pool, graph_of(2)).shared();
  for (int draft = 0; draft < 10; ++draft) shared(pool, graph_of(3));
  EXPECT_FALSE(first.expired());
  for (int draft = 0; draft < 100; ++draft) shared(pool, graph_of(3));
  EXPECT_TRUE(first.expired());
}

TEST(TaskPool, LeavesAloneWhatSomebodyElseHas) {
  TaskPool pool;
  const TaskGraph first = shared(pool, graph_of(2)), own = graph_of(2);
  Draft draft;
  draft.tasks.push_back({"F0", own, 0});
  pool.share(draft);
  EXPECT_EQ(draft.tasks[TaskId(0)].graph.shared(), own.shared());
}

}  // namespace
}  // namespace penstock
