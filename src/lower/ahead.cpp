#include "lower/ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace penstock {
namespace {

// The op that scales the gradient, and `validated` made adamw.
Op split_off_scaling(Graph& graph, Op& validated, const Op& ahead) {
  Op scale;
  scale.name = "mul";
  scale.operands = {ahead.operands[1], validated.operands.back()};
  scale.results = {graph.add_value(graph.type(ahead.operands[1]))};
  scale.sequence = validated.sequence;
  validated.name = "adamw";
  validated.operands.assign(ahead.operands.begin(), ahead.operands.begin() + 6);
  validated.operands[1] = scale.results[0];
  return scale;
}

// Does nothing but the validation read what is updated ahead?
bool is_pair(const Op& ahead, const Op& validated, const std::vector<int>& uses) {
  const std::vector<ValueId>& in = validated.operands;
  const std::vector<ValueId> read = {in[0], in[1], in[2], in[3], in[5], in[6]};
  return ahead.name == "adamw_ahead" && ahead.results == read && ahead.operands[1] == in[4] &&
         std::all_of(read.begin(), read.end(), [&](ValueId v) { return uses[v.index()] == 1; });
}

}  // namespace

void update_ahead_only_where(Graph& graph, const std::function<bool(const Op& ahead)>& early) {
  const std::vector<OpId> producer = producers(graph);
  const std::vector<int> uses = use_counts(graph);
  std::vector<OpId> late(graph.ops.size());  // of an adamw_validated: its adamw_ahead, where both become one adamw
  std::vector<bool> dropped(graph.ops.size(), false);
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].name != "adamw_validated") continue;
    const OpId from = producer[graph.ops[i].operands[0].index()];
    if (!from || !is_pair(graph.ops[from.index()], graph.ops[i], uses) || early(graph.ops[from.index()])) continue;
    late[i] = from;
    dropped[from.index()] = true;
  }
  std::vector<Op> ops;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (late[i]) ops.push_back(split_off_scaling(graph, graph.ops[i], graph.ops[late[i].index()]));
    if (!dropped[i]) ops.push_back(graph.ops[i]);
  }
  graph.ops = std::move(ops);
}

}  // namespace penstock
