// SPDX-License-Identifier: Apache-2.0
#include "exported/uniform.h"

#include <algorithm>

#include "exported/sample_rules.h"
#include "ops/definition.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

using Integers = std::vector<std::int64_t>;

const Op* producer_of(const Graph& graph, const IdVector<ValueId, OpId>& producers, ValueId value) {
  return producers[value] ? &graph.ops[producers[value]] : nullptr;
}

// Whether the value is 0, 1, 2, ..., one for each sample, perhaps with dims of one place around.
bool is_places(const Graph& graph, const IdVector<ValueId, OpId>& producers, ValueId value, std::int64_t samples) {
  const Op* op = producer_of(graph, producers, value);
  if (!op || graph.type(value).elements() != samples) return false;
  if (op->name == "arange") return true;
  const bool moves = op->name == "reshape" || op->name == "unsqueeze" || op->name == "squeeze" || op->name == "to" || op->name == "expand";
  return moves && is_places(graph, producers, op->operands[0], samples);
}

// Which dims of x are indexed, by the operands behind it; -1: the dim is taken whole.
std::vector<int> indices_of_dims(const LayoutSite& site) {
  const Integers none = attribute_or(site.op, "none", Integers());
  std::vector<int> out;
  for (std::size_t place = 1, next = 1; next < site.operands.size() || std::ranges::count(none, place) != 0; ++place) {
    const bool absent = std::ranges::count(none, place) != 0;
    out.push_back(absent ? -1 : static_cast<int>(next));
    if (!absent) ++next;
  }
  while (out.size() < site.operands[0].shape.size()) out.push_back(-1);
  return out;
}

// Where the dims of the indices, as they broadcast, stand in the result.
struct IndexPlace {
  std::int64_t rank = 0, begin = 0;
};
IndexPlace place_of_indices(const LayoutSite& site, const std::vector<int>& of_dims) {
  IndexPlace out;
  for (std::size_t i = 1; i < site.operands.size(); ++i) out.rank = std::max(out.rank, std::ssize(site.operands[i].shape));
  const auto first = std::ranges::find_if(of_dims, [](int index) { return index >= 0; });
  const auto behind = std::find(first, of_dims.end(), -1);
  const bool together = std::find_if(behind, of_dims.end(), [](int index) { return index >= 0; }) == of_dims.end();
  out.begin = together ? first - of_dims.begin() : 0;
  return out;
}

// Returns how the indices lie where the result is split along one of their dims; none: it is split along another.
std::optional<std::vector<Layout>> split_indices(const LayoutSite& site, const Layout& split) {
  const auto [rank, begin] = place_of_indices(site, indices_of_dims(site));
  if (split.dim < begin || split.dim >= begin + rank) return std::nullopt;
  std::vector<Layout> out = {kWhole};
  for (std::size_t i = 1; i < site.operands.size(); ++i) {
    Layout own = split;
    own.dim = static_cast<std::int32_t>(split.dim - begin - rank + std::ssize(site.operands[i].shape));
    out.push_back(own.dim < 0 ? kWhole : own);
  }
  return out;
}

// Returns how an op's operands lie where its result is split so; none: it cannot be told.
std::optional<std::vector<Layout>> operands_of_split(const LayoutSite& site, const Layout& split) {
  const std::string& name = site.op.name;
  const Shape &from = site.operands[0].shape, &to = site.results[0].shape;
  Layout first = split;
  if (name == "aten::index.Tensor") return split_indices(site, split);
  if (name == "slice") return std::vector<Layout>{split};  // also of more places than there are samples
  if (name == "embedding") return std::vector<Layout>{kWhole, split};
  if (name == "expand") {
    first.dim -= static_cast<std::int32_t>(to.size() - from.size());
    return std::vector<Layout>{first.dim < 0 || from[static_cast<std::size_t>(first.dim)] == 1 ? kWhole : first};
  }
  if (name == "reshape" || name == "unsqueeze" || name == "squeeze") {
    const std::optional<Layout> before = reshaped(split, to, from, site.members);
    return before ? std::optional(std::vector<Layout>{*before}) : std::nullopt;
  }
  for (std::int32_t i = 0; i < std::ssize(site.operands); ++i)
    for (std::int32_t dim = 0; dim < std::ssize(site.operands[static_cast<std::size_t>(i)].shape); ++dim) {
      std::vector<Layout> at(site.operands.size());
      at[static_cast<std::size_t>(i)] = split;
      at[static_cast<std::size_t>(i)].dim = dim;
      const auto operand = static_cast<std::size_t>(i);
      const std::optional<LayoutRow> row = find_op(name) ? layout_row(site, operand, at[operand]) : named_row(site, operand, at);
      if (row && row->results[0] == split) return row->operands;
    }
  return std::nullopt;
}

}  // namespace

std::optional<bool> is_uniform(const Graph& graph, const IdVector<ValueId, OpId>& producers, ValueId value, const Layout& split,
                               std::int64_t samples) {
  if (graph.type(value).shape[static_cast<std::size_t>(split.dim)] == split.outer) return true;
  const Op* op = producer_of(graph, producers, value);
  if (!op) return false;
  if (op->operands.empty()) return op->name == "full";
  const std::vector<TensorType> operands = types_of(graph, op->operands), results = types_of(graph, op->results);
  const std::optional<std::vector<Layout>> before = operands_of_split({*op, operands, results, samples}, split);
  if (!before) return std::nullopt;
  std::optional<bool> all = true;
  for (std::size_t i = 0; i < operands.size() && all == true; ++i)
    if ((*before)[i].is_split()) all = is_uniform(graph, producers, op->operands[i], (*before)[i], samples);
  return all;
}

std::optional<LayoutRow> index_row(const Graph& graph, const IdVector<ValueId, OpId>& producers, const LayoutSite& site,
                                   const std::vector<Layout>& at, std::int64_t samples) {
  const std::vector<int> of_dims = indices_of_dims(site);
  const auto [rank, begin] = place_of_indices(site, of_dims);
  LayoutRow row{at, {split_layout(begin, 1, samples, samples)}};
  if (at[0].is_split()) {
    const auto dim = static_cast<std::size_t>(at[0].dim);
    const int index = of_dims[dim];
    if (index >= 0 && !is_places(graph, producers, site.op.operands[static_cast<std::size_t>(index)], samples)) return std::nullopt;
    if (index < 0 && std::any_of(at.begin() + 1, at.end(), [](const Layout& each) { return each.is_split(); })) return std::nullopt;
    if (index >= 0) {
      const std::size_t size = site.operands[static_cast<std::size_t>(index)].shape.size();
      const Shape& shape = site.operands[static_cast<std::size_t>(index)].shape;
      const auto own = std::ranges::find(shape, samples) - shape.begin();
      row.results[0].dim = static_cast<std::int32_t>(begin + rank - static_cast<std::int64_t>(size) + own);
    } else {
      const auto taken = std::count_if(of_dims.begin(), of_dims.begin() + at[0].dim, [](int i) { return i >= 0; });
      const bool behind = taken > 0 || begin < at[0].dim;
      row.results[0] = at[0];
      if (behind) row.results[0].dim = static_cast<std::int32_t>(at[0].dim - taken + rank);
    }
    return row;
  }
  for (std::size_t i = 1; i < at.size(); ++i)
    if (at[i].is_split()) {
      row.results[0] = at[i];
      row.results[0].dim = static_cast<std::int32_t>(begin + rank - std::ssize(site.operands[i].shape) + at[i].dim);
      return row;
    }
  return std::nullopt;
}

std::optional<Layout> reshaped_single(const Layout& split, const Shape& from, const Shape& to) {
  if (to.empty()) return std::nullopt;
  std::int64_t ahead = split.outer, prefix = 1;
  for (std::int32_t d = 0; d < split.dim; ++d) ahead *= from[static_cast<std::size_t>(d)];
  const bool alone = from[static_cast<std::size_t>(split.dim)] == 1;
  Layout out = split_layout(0, 1, 1, 1);
  for (std::size_t d = 0; d < to.size(); prefix *= to[d++]) {
    const bool here = prefix == ahead && (to[d] == 1 || !alone || d + 1 == to.size() || to[d + 1] != 1);
    const bool inside = prefix < ahead && prefix * to[d] > ahead;
    if (!here && !inside) continue;
    out.dim = static_cast<std::int32_t>(d);
    out.outer = ahead / prefix;
    return out;
  }
  out.dim = static_cast<std::int32_t>(to.size()) - 1;
  out.outer = to.back();
  return out;
}

}  // namespace penstock
