// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

bool is_constraint(const Op& op) {
  return op.name == "constrain";
}

// The words that backward ops of a dropped op say of it, and say of the op that made its operand then: the sum of a value's cotangents
// belongs to the op that made the value.
struct Successor {
  std::string origin;
  std::int64_t sequence = -1;
  std::int64_t before = 0;  // how many dropped ops have lower numbers
};

// The sequence numbers of a step without those that were dropped.
struct Sequences {
  std::map<std::int64_t, Successor> dropped;  // by forward op

  // The number when nobody had taken the dropped ones.
  std::int64_t closed(std::int64_t sequence) const {
    const auto next = dropped.lower_bound(sequence);
    return sequence - (next == dropped.end() ? std::ssize(dropped) : next->second.before);
  }
};

void find_dropped(const Graph& graph, Sequences& out) {
  const IdVector<ValueId, OpId> producer = producers(graph);
  for (const Op& op : graph.ops) {
    if (op.body) find_dropped(*op.body, out);
    if (!is_constraint(op) || op.phase == Phase::backward || op.sequence < 0) continue;
    Successor& successor = out.dropped[op.sequence];
    OpId from = producer[op.operands[0]];
    while (from && is_constraint(graph.ops[from])) from = producer[graph.ops[from].operands[0]];
    if (from) successor = {.origin = graph.ops[from].origin, .sequence = graph.ops[from].sequence};
  }
}

void set_marks(Op& op, const Sequences& sequences) {
  if (const auto found = sequences.dropped.find(op.sequence); found != sequences.dropped.end()) {
    op.origin = found->second.origin;
    op.sequence = found->second.sequence;
  }
  if (op.sequence >= 0) op.sequence = sequences.closed(op.sequence);
}

Graph without_constraints(const Graph& graph, const Sequences& sequences) {
  Rewrite rewrite = Rewrite::with_inputs(graph);
  for (const Op& op : graph.ops) {
    if (is_constraint(op)) {
      rewrite[op.results[0]] = rewrite[op.operands[0]];
      continue;
    }
    Op& kept = rewrite.copy(op);
    set_marks(kept, sequences);
    if (op.body) kept.body = std::make_shared<const Graph>(without_constraints(*op.body, sequences));
  }
  return rewrite.finish();
}

bool has_constraints(const Graph& graph) {
  return std::any_of(graph.ops.begin(), graph.ops.end(),
                     [](const Op& op) { return is_constraint(op) || (op.body && has_constraints(*op.body)); });
}

}  // namespace

Graph drop_constraints(const Graph& graph) {
  if (!has_constraints(graph)) return graph;
  Sequences sequences;
  find_dropped(graph, sequences);
  std::int64_t before = 0;
  for (auto& [sequence, successor] : sequences.dropped) successor.before = before++;
  return without_constraints(graph, sequences);
}

}  // namespace penstock
