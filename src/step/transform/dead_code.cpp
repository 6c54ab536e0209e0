// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>

#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

template <class Item>
void keep_where(std::vector<Item>& items, const std::vector<bool>& keep) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (keep[i]) items[kept++] = items[i];
  items.resize(kept);
}

struct Live {
  IdVector<ValueId, bool> values;             // whether a live op or an output reads the value
  std::unordered_map<std::size_t, Op> loops;  // live loops, reduced to their live results and operands
};

Live find_live(const Graph& graph, const std::vector<ValueId>& outputs);

// The graph without dead ops and, if `drop_inputs`, without unread inputs.
Graph remove_dead(const Graph& graph, const Live& live, bool drop_inputs) {
  Rewrite rewrite(graph);
  for (ValueId input : graph.inputs)
    if (!drop_inputs || live.values[input]) rewrite.copy_input(input);
  const auto is_live = [&](ValueId value) { return live.values[value]; };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (std::none_of(op.results.begin(), op.results.end(), is_live)) continue;
    const auto loop = live.loops.find(i);
    rewrite.copy(loop == live.loops.end() ? op : loop->second);
  }
  return rewrite.finish();
}

// The loop without the results that nobody reads and the operands that its body then no longer reads.
Op reduce_loop(const Op& op, const std::vector<bool>& live_values) {
  Op loop = op;
  std::vector<bool> keep;
  for (ValueId result : op.results) keep.push_back(live_values[result.index()]);
  const Graph& body = *op.body;
  std::vector<ValueId> outputs = body.outputs;
  keep_where(loop.results, keep);
  keep_where(outputs, keep);

  const Live live = find_live(body, outputs);
  Graph reduced = remove_dead(body, live, true);
  keep_where(reduced.outputs, keep);
  keep.clear();
  for (ValueId input : body.inputs) keep.push_back(live.values[input]);
  keep_where(loop.operands, keep);
  const auto split = static_cast<std::ptrdiff_t>(attribute<std::int64_t>(op, "split"));
  loop.attributes["split"] = static_cast<std::int64_t>(std::count(keep.begin(), keep.begin() + split, true));
  loop.body = std::make_shared<const Graph>(std::move(reduced));
  return loop;
}

Live find_live(const Graph& graph, const std::vector<ValueId>& outputs) {
  Live live;
  live.values.resize(graph.values.size());
  for (ValueId output : outputs) live.values[output] = true;
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    if (std::none_of(op.results.begin(), op.results.end(), [&](ValueId value) { return live.values[value]; })) continue;
    const Op* kept = &op;
    if (op.body) kept = &live.loops.emplace(i, reduce_loop(op, live.values)).first->second;
    for (ValueId operand : kept->operands) live.values[operand] = true;
  }
  return live;
}

}  // namespace

Graph eliminate_dead_code(const Graph& graph) {
  return remove_dead(graph, find_live(graph, graph.outputs), false);
}

}  // namespace penstock
