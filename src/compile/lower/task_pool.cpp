// SPDX-License-Identifier: Apache-2.0
#include "lower/task_pool.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::int64_t kKeptFor = 32;  // drafts that do without a graph before it is forgotten

bool is_same_op(const Op& a, const Op& b) {
  return a.name == b.name && a.operands == b.operands && a.results == b.results && a.attributes == b.attributes && a.stage == b.stage &&
         a.phase == b.phase && a.origin == b.origin && a.sequence == b.sequence && a.body == b.body;
}

bool is_same_value(const Value& a, const Value& b) {
  return a.type == b.type && a.name == b.name;
}

bool is_same_graph(const Graph& a, const Graph& b) {
  return a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs && a.state == b.state && a.output_names == b.output_names &&
         std::ranges::equal(a.values, b.values, is_same_value) && std::ranges::equal(a.ops, b.ops, is_same_op);
}

}  // namespace

void TaskPool::share(Draft& draft) {
  ++drafts_;
  for (Task& task : draft.tasks) {
    if (task.graph.shared().use_count() > 1) continue;  // whoever else has it keeps it
    const std::uint64_t hash = structural_hash(task.graph);
    const auto [begin, end] = kept_.equal_range(hash);
    auto known = std::find_if(begin, end, [&](const auto& kept) { return is_same_graph(kept.second.graph, task.graph); });
    if (known == end) known = kept_.emplace(hash, Kept{task.graph});
    known->second.used = drafts_;
    task.graph = known->second.graph;
  }
  std::erase_if(kept_, [&](const auto& kept) { return kept.second.used + kKeptFor < drafts_; });
}

}  // namespace penstock
