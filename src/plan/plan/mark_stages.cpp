// SPDX-License-Identifier: Apache-2.0
// Plans as marks of the step's ops: stages, and what of each node is computed again or swapped.
#include <algorithm>

#include "base/numbers.h"
#include "ops/definition.h"
#include "plan/step_nodes.h"
#include "stage/loop.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

// By op of the loop's body: the earliest node whose backward reads what it makes, or a view of that; "" where none does. `names`: each op's
// node.
std::vector<std::string> first_backward_readers(const Graph& body, const std::vector<std::string>& names) {
  std::map<std::string, int> number;  // of nodes, in the order of tracing
  std::vector<std::string> nodes;
  std::map<std::int64_t, int> node_of;  // of forward ops, by their sequence
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    if (names[i].empty()) continue;
    const auto [found, is_new] = number.try_emplace(names[i], static_cast<int>(nodes.size()));
    if (is_new) nodes.push_back(names[i]);
    if (body.ops[i].sequence >= 0) node_of[body.ops[i].sequence] = found->second;
  }
  const IdVector<ValueId, OpId> producer = producers(body);
  IdVector<OpId, int> first(body.ops.size(), static_cast<int>(nodes.size()));
  for (const Op& op : body.ops) {
    const auto node = node_of.find(op.sequence);
    if (op.phase == Phase::forward || node == node_of.end()) continue;
    for (const ValueId operand : op.operands)
      for (OpId from = producer[operand]; from; from = is_view(body.ops[from]) ? producer[body.ops[from].operands[0]] : OpId())
        first[from] = std::min(first[from], node->second);
  }
  nodes.emplace_back();
  std::vector<std::string> out;
  for (const int node : first) out.push_back(nodes[at(node)]);
  return out;
}

}  // namespace

Graph mark_stages(const Graph& step, const std::map<std::string, std::string>& stage_of, const std::set<std::string>& again,
                  const std::set<std::string>& swapped) {
  const std::vector<std::string> names = node_names(step);
  Graph out = step;
  Op& loop = out.ops[loop_of(step)];
  const Graph& body = *loop.body;
  const std::vector<std::string> readers = first_backward_readers(body, names);
  Rewrite marked(body);
  for (const ValueId input : body.inputs) marked.copy_input(input);
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const Op& op = body.ops[i];
    if (is_boundary(op)) {
      marked[op.results[0]] = marked[op.operands[0]];
      continue;
    }
    const auto found = stage_of.find(names[i]);
    Op& made = marked.copy(op);
    made.stage = found == stage_of.end() ? "" : found->second;
    if (again.contains(names[i])) made.attributes[kRecompute] = true;
    if (op.phase == Phase::forward && swapped.contains(readers[i])) made.attributes[kOffload] = true;
  }
  loop.body = std::make_shared<const Graph>(marked.finish());
  return out;
}

}  // namespace penstock
