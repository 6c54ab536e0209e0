// SPDX-License-Identifier: Apache-2.0
#include "penstock/layout.h"

#include <algorithm>

#include "base/text.h"

namespace penstock {

Layout split_layout(std::int64_t dim, std::int64_t outer, std::int64_t units, std::int64_t members) {
  return {Layout::Kind::split, static_cast<std::int32_t>(dim), outer, units % members == 0 ? members : units};
}

Layout mirrored_layout(std::int64_t dim, std::int64_t members) {
  Layout out = split_layout(dim, 2, members, members);
  out.mirrored = true;
  return out;
}

LayoutRange range_of(const Layout& layout, std::int64_t size, std::int64_t members, std::int64_t member) {
  if (layout.is_flat()) {
    const auto begin = [&](std::int64_t m) { return std::clamp<std::int64_t>(m * layout.units - layout.outer, 0, size); };
    return {begin(member), begin(member + 1)};
  }
  const std::int64_t unit = size / layout.units, each = layout.units / members, more = layout.units % members;
  const auto first = [&](std::int64_t m) {
    if (layout.ends) return m == 0 ? 0 : (*layout.ends)[static_cast<std::size_t>(m - 1)] * unit;
    return (m * each + std::min(m, more)) * unit;
  };
  return {first(member), first(member + 1)};
}

LayoutView view_of(const Layout& split, const Shape& shape) {
  LayoutView view{split.outer, shape[split.dim] / split.outer, 1};
  for (std::int32_t d = 0; d < split.dim; ++d) view.blocks *= shape[d];
  for (std::size_t d = split.dim + 1; d < shape.size(); ++d) view.inner *= shape[d];
  return view;
}

TensorType local_type(TensorType type, const Layout& layout, std::int64_t members, std::int64_t member) {
  if (layout.is_flat()) return {type.dtype, {range_of(layout, type.elements(), members, member).size()}};
  if (!layout.is_split()) return type;
  std::int64_t& size = type.shape[layout.dim];
  size = layout.outer * range_of(layout, size / layout.outer, members, member).size();
  return type;
}

std::optional<Layout> reshaped(const Layout& split, const Shape& from, const Shape& to, std::int64_t members) {
  const LayoutView view = view_of(split, from);
  const std::int64_t span = view.size * view.inner;                // elements of a block
  const std::int64_t unit = view.size / split.units * view.inner;  // elements of a unit
  std::int64_t inner = 1;
  for (std::size_t d = to.size(); d-- > 0; inner *= to[d]) {
    if (to[d] <= 1 || span % inner != 0 || unit % inner != 0) continue;
    const std::int64_t size = span / inner;
    if (size <= 1 || to[d] % size != 0) continue;
    Layout out = split_layout(static_cast<std::int64_t>(d), to[d] / size, split.units, members);
    out.mirrored = split.mirrored;
    if (split.ends) out.units = split.units;
    out.ends = split.ends;
    if (!out.mirrored || out.outer % 2 == 0) return out;
  }
  return std::nullopt;
}

std::string text_of(const Layout& layout) {
  if (layout.is_whole()) return "whole";
  if (layout.is_term()) return "term";
  if (layout.is_flat()) return "flat";
  if (layout.outer == 1) return concat("split ", layout.dim);
  return concat("split ", layout.dim, " of ", layout.outer, layout.mirrored ? ", mirrored" : "");
}

}  // namespace penstock
