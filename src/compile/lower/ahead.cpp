// SPDX-License-Identifier: Apache-2.0
#include "lower/ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/optimiser.h"

namespace penstock {

void update_ahead_only_where(Graph& graph, const std::function<bool(const Op& ahead)>& early) {
  const IdVector<ValueId, OpId> producer = producers(graph);
  const IdVector<ValueId, int> uses = use_counts(graph);
  const auto is_read_once = [&](ValueId v) { return uses[v] == 1; };
  std::vector<OpId> late(graph.ops.size());  // of an update_validated: its update_ahead, where both become one update
  IdVector<OpId, bool> dropped(graph.ops.size(), false);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!is_update_validated(graph.ops[i])) continue;
    const OpId from = producer[graph.ops[i].operands[0]];
    if (!from || !validates(graph.ops[i], graph.ops[from])) continue;
    const Op& ahead = graph.ops[from];
    if (early(ahead) || !std::ranges::all_of(ahead.results, is_read_once)) continue;
    late[i] = from;
    dropped[from] = true;
  }
  std::vector<Op> ops;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (dropped[i]) continue;
    if (!late[i]) {
      ops.push_back(graph.ops[i]);
      continue;
    }
    const Op& ahead = graph.ops[late[i]];
    const ValueId scaled = graph.add_value(graph.type(ahead.results[0]));
    ScaledUpdate update = as_one_update(ahead, graph.ops[i], scaled);
    ops.push_back(std::move(update.scale));
    ops.push_back(std::move(update.update));
  }
  graph.ops = std::move(ops);
}

}  // namespace penstock
