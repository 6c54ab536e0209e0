// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "ops/definition.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

// A text that is equal for ops that compute the same at the same place. It names operands by their new values; result types tell calls of
// unknown ops apart.
std::string key_of(const Op& op, Rewrite& rewrite, const Graph& graph) {
  std::string key = quote(op.name) + quote(op.stage) + (op.phase == Phase::backward ? "b" : "f");
  for (ValueId operand : op.operands) key += "%" + std::to_string(rewrite[operand].value);
  for (ValueId result : op.results) key += graph.type(result).text();
  for (const auto& [name, value] : op.attributes) key += "," + name + "=" + text_of(value);
  return key;
}

}  // namespace

Graph eliminate_common_subexpressions(const Graph& graph) {
  Rewrite rewrite = Rewrite::with_inputs(graph);
  std::unordered_map<std::string, std::size_t> first;  // key -> position in the new graph
  // Sequence of a merged forward op -> sequence of the op that stays; and those of forward ops that stay. Several forward ops may share one
  // (an exported graph's op became several); constants among them say nothing of a place.
  std::unordered_map<std::int64_t, std::int64_t> merged_sequence;
  std::unordered_set<std::int64_t> staying;
  for (const Op& op : graph.ops) {
    if (op.body) {
      rewrite.copy(op, eliminate_common_subexpressions(*op.body));
      continue;
    }
    // An op that members of an axis do together stays: on other members its operands may differ.
    if (is_collective(op)) {
      rewrite.copy(op);
      continue;
    }
    const auto [it, is_new] = first.emplace(key_of(op, rewrite, graph), rewrite.graph.ops.size());
    if (is_new) {
      Op& made = rewrite.copy(op);
      // Its forward op may have been merged away: it takes the sequence of the op that stays.
      const auto merged = merged_sequence.find(op.sequence);
      if (op.phase == Phase::backward && merged != merged_sequence.end() && !staying.contains(op.sequence)) made.sequence = merged->second;
      if (op.phase == Phase::forward && !op.operands.empty()) staying.insert(op.sequence);
      continue;
    }
    const Op& same = rewrite.graph.ops[it->second];
    for (std::size_t i = 0; i < op.results.size(); ++i) rewrite[op.results[i]] = same.results[i];
    if (op.phase == Phase::forward && op.sequence != -1 && !op.operands.empty()) merged_sequence[op.sequence] = same.sequence;
  }
  return rewrite.finish();
}

}  // namespace penstock
