// SPDX-License-Identifier: Apache-2.0
// Rules for what the members of an axis can compute of an op on parts of its operands: those that several families share, and who asks
// them. Most say which dims of operands and results are one dim of the op, as the letters of an einsum do.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/op.h"

namespace penstock {

// The row in which operand `operand` (or result `result`) is split as given; none: the op has no such row, or a member would have nothing.
// All rules are asked here, so that no rule sees a split of fewer units than members. Of a flat operand an op can have two rows: element by
// element with all operands of its shape, and the sum of all its elements, which is a term.
std::optional<LayoutRow> layout_row(const LayoutSite& site, std::size_t operand, const Layout& layout);
// The same of an op of a graph, where the operand is flat.
std::optional<LayoutRow> flat_row(const Graph& graph, const Op& op, std::size_t operand);
std::optional<LayoutRow> layout_row_of_result(const LayoutSite& site, std::size_t result, const Layout& split);
// The row in which terms stay terms, where the operands lie `from`: of an op that is linear in all of them, or of a sum of scalars of which
// some are terms and the first member adds those that are whole.
std::optional<LayoutRow> row_of_terms(const LayoutSite& site, std::span<const Layout> from);
// Whether all members take part in all of the row's conversions of operands that lie `from`: what the first one alone reads has to lie as
// it is read.
bool converts_alike(const LayoutSite& site, const LayoutRow& row, std::span<const Layout> from);
// The op of one member in this row: the whole one but for what its `local` says. Its operands are still the whole op's, less those that the
// member leaves out.
Op local_op(const LayoutSite& site, const LayoutRow& row, std::int64_t member);
// The same of an op of a graph, but its operands are places among the whole op's.
Op local_op_by_places(const Graph& graph, const Op& op, const LayoutRow& row, std::int64_t members, std::int64_t member);
// Whether the op maps a sum of operands, of all its operands, to the sum of the results.
bool is_linear(const Op& op);

// The dims of an op's operands and results by number: dims of one number are one dim of the op, and are cut alike. A result without the
// number of a dim that is cut is a term of a sum.
inline constexpr int kNeverCut = -1;
struct DimNumbers {
  std::vector<std::vector<int>> operands, results;
};
std::optional<LayoutRow> row_by_numbers(const DimNumbers& numbers, const LayoutSite& site, std::size_t operand, const Layout& split);
std::optional<LayoutRow> row_by_numbers_of_result(const DimNumbers& numbers, const LayoutSite& site, std::size_t result,
                                                  const Layout& split);

// Numbers from text such as "*k,mk,m->*m": a letter for each dim; * stands for any number of dims that broadcast; capitals and digits are
// never cut. The last name before and after the arrow stands for all further operands and results.
DimNumbers numbers_of(std::string_view names, const LayoutSite& site);
// All operands and results have the same dims; the one of the attribute "dim" is never cut.
DimNumbers all_dims_but_one(const LayoutSite& site);

// --- rules for OpDefinition::layout and layout_result

template <DimNumbers (*Numbers)(const LayoutSite&)>
std::optional<LayoutRow> by(const LayoutSite& site, std::size_t operand, const Layout& split) {
  return row_by_numbers(Numbers(site), site, operand, split);
}
template <DimNumbers (*Numbers)(const LayoutSite&)>
std::optional<LayoutRow> result_by(const LayoutSite& site, std::size_t result, const Layout& split) {
  return row_by_numbers_of_result(Numbers(site), site, result, split);
}

// A text as a template's argument.
template <std::size_t N>
struct TextArgument {
  char text[N];
  constexpr TextArgument(const char (&from)[N]) {
    for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};
template <TextArgument Names>
DimNumbers named(const LayoutSite& site) {
  return numbers_of({Names.text, sizeof Names.text - 1}, site);
}
// Elementwise, with broadcasting.
inline constexpr LayoutRule all_dims = by<named<"*->*">>;
inline constexpr LayoutRule other_dims = by<all_dims_but_one>;

// --- rules for OpDefinition::local

// The attribute of this name is the shape of result 0.
template <TextArgument Name>
void local_shape(const LocalSite& site, Op& local) {
  local.attributes[Name.text] = site.results[0].shape;
}
// The last of three operands is added to the result: where that is a term, by the first member alone.
void local_bias(const LocalSite& site, Op& local);

}  // namespace penstock
