// SPDX-License-Identifier: Apache-2.0
#include "transform/viewed.h"

namespace penstock {
namespace {

std::int64_t dim_of(const Op& op, const char* name, std::size_t dims) {
  const auto dim = attribute<std::int64_t>(op, name);
  return dim < 0 ? dim + static_cast<std::int64_t>(dims) : dim;
}

// Returns how the operand of a transpose is split where its result is split as given.
Layout transposed(const Op& op, std::size_t dims, Layout split) {
  const std::int64_t first = dim_of(op, "dim0", dims), second = dim_of(op, "dim1", dims);
  if (split.dim == first || split.dim == second) split.dim = static_cast<std::int32_t>(split.dim == first ? second : first);
  return split;
}

}  // namespace

bool is_seen_through(const Op& op) {
  return op.name == "reshape" || op.name == "transpose";
}

std::optional<Asked> viewed(const Graph& graph, OpId made, const GraphLayouts& layouts, std::int64_t members, const Asked& asked) {
  if (!made || layouts.values[asked.value].is_whole()) return std::nullopt;
  const Op& view = graph.ops[made];
  if (!is_seen_through(view)) return std::nullopt;
  const ValueId base = view.operands[0];
  if (layouts.rows[made].operands[0] != layouts.values[base]) return std::nullopt;
  if (!asked.layout.is_split()) return Asked{base, asked.layout};
  const Shape &shape = graph.type(asked.value).shape, &before = graph.type(base).shape;
  if (view.name == "transpose") return Asked{base, transposed(view, shape.size(), asked.layout)};
  const std::optional<Layout> layout = reshaped(asked.layout, shape, before, members);
  return layout ? std::optional(Asked{base, *layout}) : std::nullopt;
}

Asked converted_for(const Graph& graph, const IdVector<ValueId, OpId>& producers, const GraphLayouts& layouts, std::int64_t members,
                    Asked asked) {
  while (const auto before = viewed(graph, producers[asked.value], layouts, members, asked)) asked = *before;
  return asked;
}

}  // namespace penstock
