// The lifetimes and places of a task's temporaries.
#include <algorithm>

#include "ops/definition.h"
#include "program/memory_plan.h"
#include "program/placement.h"

namespace penstock {
namespace {

// For each value, the value in whose storage it lives, and until which op that storage is needed.
struct Storage {
  IdVector<ValueId, ValueId> root;      // by value: itself, or the value that it views
  IdVector<ValueId, bool> dense;        // by value: whether its elements are all of the root's and in the root's order
  IdVector<ValueId, std::size_t> last;  // by root: the last op that touches it; ops.size() where an output needs it
  IdVector<ValueId, bool> temporary;    // by root: whether it is neither an input nor an output of the graph
};

// The operand that the op's results view; none for fresh storage. A reshape of a value that is not dense copies.
ValueId viewed(const Op& op, const Storage& storage) {
  const OpDefinition* definition = find_op(op.name);
  if (definition == nullptr || definition->views < 0) return {};
  const ValueId operand = op.operands[definition->views];
  return op.name == "reshape" && !storage.dense[operand] ? ValueId() : operand;
}

Storage storage_of(const Graph& graph) {
  const std::size_t values = graph.values.size();
  Storage storage{std::vector<ValueId>(values), std::vector<bool>(values, true), std::vector<std::size_t>(values, 0),
                  std::vector<bool>(values, true)};
  for (std::size_t v = 0; v < values; ++v) storage.root[v] = ValueId(v);
  for (ValueId input : graph.inputs) storage.temporary[input] = false;
  const auto touch = [&](ValueId value, std::size_t op) { storage.last[storage.root[value]] = op; };
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    const ValueId base = viewed(op, storage);
    for (ValueId result : op.results) {
      if (base) {
        storage.root[result] = storage.root[base];
        storage.dense[result] = op.name == "reshape";
      }
      touch(result, o);
    }
    for (ValueId operand : op.operands) touch(operand, o);
  }
  for (ValueId output : graph.outputs) {
    const ValueId root = storage.root[output];
    if (root == output) storage.temporary[root] = false;  // written straight into its slot; a view is copied there at the end
    touch(output, graph.ops.size());
  }
  return storage;
}

// The lifetime of an operand of op `o` over which it may write `result`: the operand dies here, is read element by element in the result's
// order, and no other result has taken it. -1: none.
std::int64_t overwritten(const Graph& graph, const Storage& storage, const IdVector<ValueId, std::int64_t>& lifetime_of, std::size_t o,
                         ValueId result) {
  const Op& op = graph.ops[o];
  const OpDefinition* definition = find_op(op.name);
  if (definition == nullptr || !definition->elementwise) return -1;
  // add_n sums from left to right into its result: the first sum has read the first two operands, the others are read later.
  const std::size_t readable = op.name == "add_n" ? std::min<std::size_t>(2, op.operands.size()) : op.operands.size();
  for (std::size_t i = 0; i < readable; ++i) {
    const ValueId operand = op.operands[i];
    const std::int64_t lifetime = lifetime_of[operand];
    const auto is_view = [&](ValueId other) { return other != operand && storage.root[other] == operand; };
    const auto has_it = [&](ValueId other) { return lifetime_of[other] == lifetime; };
    if (lifetime >= 0 && storage.last[operand] == o && graph.type(operand) == graph.type(result) &&
        std::none_of(op.operands.begin(), op.operands.end(), is_view) && std::none_of(op.results.begin(), op.results.end(), has_it))
      return lifetime;
  }
  return -1;
}

}  // namespace

ScratchPlan plan_scratch(const Graph& graph) {
  const Storage storage = storage_of(graph);
  IdVector<ValueId, std::int64_t> lifetime_of(graph.values.size(), -1);
  std::vector<Lifetime> lifetimes;
  for (std::size_t o = 0; o < graph.ops.size(); ++o)
    for (ValueId result : graph.ops[o].results) {
      if (storage.root[result] != result || !storage.temporary[result]) continue;
      std::int64_t lifetime = overwritten(graph, storage, lifetime_of, o, result);
      if (lifetime < 0) {
        lifetime = static_cast<std::int64_t>(lifetimes.size());
        const std::int64_t bytes = (graph.type(result).bytes() + kAlignment - 1) / kAlignment * kAlignment;
        lifetimes.push_back({static_cast<std::int64_t>(o), 0, bytes});
      }
      lifetimes[lifetime].end = static_cast<std::int64_t>(storage.last[result]) + 1;
      lifetime_of[result] = lifetime;
    }
  const ArenaLayout placement = place(lifetimes);
  ScratchPlan plan{std::vector<std::int64_t>(graph.values.size(), -1), std::vector<bool>(graph.values.size()), placement.bytes};
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (lifetime_of[v] >= 0) plan.offsets[v] = placement.offsets[lifetime_of[v]];
    plan.views[v] = storage.root[v].index() != v;
  }
  return plan;
}

}  // namespace penstock
