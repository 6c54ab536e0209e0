// SPDX-License-Identifier: Apache-2.0
// The lifetimes and places of a task's temporaries.
#include <algorithm>

#include "ops/definition.h"
#include "program/memory_plan.h"
#include "program/offsets.h"

namespace penstock {
namespace {

// For each value, the value in whose storage it lives, and until which op that storage is needed.
struct Storage {
  IdVector<ValueId, ValueId> root;      // by value: itself, or the value that it views
  IdVector<ValueId, bool> dense;        // by value: whether its elements are all of the root's and in the root's order
  IdVector<ValueId, std::size_t> last;  // by root: the last op that touches it; ops.size() where an output needs it
  IdVector<ValueId, bool> temporary;    // by root: whether it is neither an input nor an output of the graph
  IdVector<ValueId, bool> part = {};    // by value: whether it is computed in a part of its root
};

// Whether the dims of `fine` are those of `coarse` in pieces: then memory with any strides that has the one shape can be seen in the other.
bool splits(const Shape& coarse, const Shape& fine) {
  std::size_t next = 0;
  for (const std::int64_t size : coarse) {
    std::int64_t product = 1;
    while (product < size && next < fine.size()) product *= fine[next++];
    if (product != size) return false;
  }
  return std::all_of(fine.begin() + static_cast<std::ptrdiff_t>(next), fine.end(), [](std::int64_t size) { return size == 1; });
}

// The operand that the op's results view; none for fresh storage. A reshape of a value that is not dense copies, unless it only splits
// dims.
ValueId viewed(const Graph& graph, const Op& op, const Storage& storage) {
  const OpDefinition* definition = find_op(op.name);
  if (definition == nullptr || definition->views < 0) return {};
  const ValueId operand = op.operands[definition->views];
  const bool copies =
      op.name == "reshape" && !storage.dense[operand] && !splits(graph.type(operand).shape, graph.type(op.results[0]).shape);
  return copies ? ValueId() : operand;
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
    const ValueId base = viewed(graph, op, storage);
    for (ValueId result : op.results) {
      if (base) {
        storage.root[result] = storage.root[base];
        storage.dense[result] = op.name == "reshape" && storage.dense[base];
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

// Whether the operand of a view can lie in any place that its result has.
bool can_lie_in_view(const Graph& graph, const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  if (!definition || definition->views < 0 || op.name == "expand" || op.name == "slice" || op.name == "select" || op.name == "split")
    return false;
  const Shape &shape = graph.type(op.results[0]).shape, &operand = graph.type(op.operands[0]).shape;
  return op.name == "transpose" || op.name == "permute" || splits(shape, operand);
}

// The values from an operand of a copying op back to the one that its views show, if an op that writes anywhere makes that, and nobody else
// reads any of them; otherwise none.
std::vector<ValueId> chain_to(const Graph& graph, const IdVector<ValueId, OpId>& producer, const IdVector<ValueId, int>& uses,
                              const Storage& storage, ValueId operand) {
  std::vector<ValueId> chain;
  for (ValueId v = operand;; v = graph.ops[producer[v]].operands[0]) {
    const OpId made = producer[v];
    if (!made || uses[v] != 1 || !storage.temporary[storage.root[v]] || storage.part[v]) return {};
    chain.push_back(v);
    const Op& op = graph.ops[made];
    if (writes_strided(op)) return chain;
    if (!can_lie_in_view(graph, op)) return {};
  }
}

// Computes in place what is only copied into another value: all of it, so that no memory is needed earlier than what would be copied.
void compute_parts_in_place(const Graph& graph, Storage& storage) {
  const auto producer = producers(graph);
  const auto uses = use_counts(graph);
  storage.part = std::vector<bool>(graph.values.size());
  for (std::size_t o = graph.ops.size(); o-- > 0;) {
    const Op& op = graph.ops[o];
    const ValueId result = op.results.empty() ? ValueId() : op.results[0];
    const bool copies = op.name == "cat" || (op.name == "reshape" && storage.root[result] == result && can_lie_in_view(graph, op));
    if (!copies) continue;
    std::vector<ValueId> all;
    for (ValueId operand : op.operands) {
      const std::vector<ValueId> chain = chain_to(graph, producer, uses, storage, operand);
      if (chain.empty()) all.clear();
      if (chain.empty()) break;
      all.insert(all.end(), chain.begin(), chain.end());
    }
    for (ValueId v : all) storage.root[v] = storage.root[result], storage.part[v] = true;
  }
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

bool writes_strided(const Op& op) {
  return op.name == "mm" || op.name == "addmm" || op.name == "scaled_dot_product_attention" ||
         op.name == "scaled_dot_product_attention_backward";
}

ScratchPlan plan_scratch(const Graph& graph) {
  Storage storage = storage_of(graph);
  compute_parts_in_place(graph, storage);
  IdVector<ValueId, std::int64_t> lifetime_of(graph.values.size(), -1);
  std::vector<Lifetime> lifetimes;
  for (std::size_t o = 0; o < graph.ops.size(); ++o)
    for (ValueId made : graph.ops[o].results) {
      const ValueId result = storage.part[made] ? storage.root[made] : made;
      if (storage.root[result] != result || !storage.temporary[result] || lifetime_of[result] >= 0) continue;
      std::int64_t lifetime = overwritten(graph, storage, lifetime_of, o, result);
      if (lifetime < 0) {
        lifetime = static_cast<std::int64_t>(lifetimes.size());
        const std::int64_t bytes = (graph.type(result).bytes() + kAlignment - 1) / kAlignment * kAlignment;
        lifetimes.push_back({static_cast<std::int64_t>(o), 0, bytes});
      }
      lifetimes[lifetime].end = static_cast<std::int64_t>(storage.last[result]) + 1;
      lifetime_of[result] = lifetime;
    }
  const ArenaLayout layout = find_offsets(lifetimes);
  ScratchPlan plan{std::vector<std::int64_t>(graph.values.size(), -1), std::vector<bool>(graph.values.size()),
                   std::vector<bool>(graph.values.size()), layout.bytes};
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (lifetime_of[v] >= 0) plan.offsets[v] = layout.offsets[lifetime_of[v]];
    plan.views[v] = storage.root[v].index() != v;
    plan.parts[v] = storage.part[v];
  }
  return plan;
}

}  // namespace penstock
