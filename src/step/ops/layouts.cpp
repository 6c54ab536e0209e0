// SPDX-License-Identifier: Apache-2.0
#include "ops/layouts.h"

#include <algorithm>

#include "ops/definition.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Rows = std::optional<LayoutRow>;

constexpr int kAnyDims = 256;  // dims that * stands for are numbered from here, from the right: as they broadcast

// Whether every member has a part of `type` that is split so.
bool is_possible(const TensorType& type, const Layout& split, std::int64_t members) {
  if (!split.is_split() || split.dim < 0 || split.dim >= std::ssize(type.shape) || type.elements() == 0) return false;
  const std::int64_t size = type.shape[split.dim];
  if (split.mirrored && (split.outer % 2 != 0 || split.units != members)) return false;
  return split.outer >= 1 && size % split.outer == 0 && split.units >= members && size / split.outer % split.units == 0;
}

std::vector<int> numbers_of_one(std::string_view names, std::size_t rank) {
  const std::size_t star = names.find('*');
  const std::size_t letters = names.size() - (star == names.npos ? 0 : 1);
  std::vector<int> out;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (i == star) {
      for (std::size_t left = rank - std::min(rank, letters); left-- > 0;) out.push_back(kAnyDims + static_cast<int>(left));
    } else {
      out.push_back(names[i] >= 'a' && names[i] <= 'z' ? names[i] : kNeverCut);
    }
  return out;
}

std::vector<std::vector<int>> numbers_of_all(std::string_view names, Types types) {
  std::vector<std::vector<int>> out;
  for (const TensorType& type : types) {
    const std::size_t comma = names.find(',');
    out.push_back(numbers_of_one(names.substr(0, comma), type.shape.size()));
    if (comma != names.npos) names.remove_prefix(comma + 1);
  }
  return out;
}

// The layouts where the dim of that number and size is split; operands without it are whole, results terms. Broadcast dims, of size 1, are
// not split.
LayoutRow row_of_number(const DimNumbers& numbers, const LayoutSite& site, int number, std::int64_t size, Layout split) {
  const auto alike = [&](const std::vector<std::vector<int>>& of, Types types, const Layout& otherwise) {
    std::vector<Layout> out(types.size(), otherwise);
    for (std::size_t i = 0; i < types.size(); ++i)
      for (std::size_t d = 0; d < types[i].shape.size(); ++d)
        if (of[i][d] == number && types[i].shape[d] == size) {
          split.dim = static_cast<std::int32_t>(d);
          out[i] = split;
        }
    return out;
  };
  return {alike(numbers.operands, site.operands, kWhole), alike(numbers.results, site.results, kTerm)};
}

// The row that holds for any range of the operand's elements. A scalar is whole beside it, any other shape would be stretched; and an op
// that asks where its part lies knows parts of dims alone.
Rows row_of_range(const OpDefinition& definition, const LayoutSite& site, std::size_t operand, const Layout& flat) {
  const Shape& shape = site.operands[operand].shape;
  if (shape.empty()) return std::nullopt;
  if (site.op.name == "sum" && site.results[0].shape.empty()) return LayoutRow{{flat}, {kTerm}};
  const auto fits = [&](const TensorType& type) { return type.shape == shape; };
  if (!definition.elementwise || definition.local || !std::ranges::all_of(site.results, fits)) return std::nullopt;
  LayoutRow row{{}, std::vector<Layout>(site.results.size(), flat)};
  for (const TensorType& type : site.operands) {
    if (!fits(type) && !type.shape.empty()) return std::nullopt;
    row.operands.push_back(fits(type) ? flat : kWhole);
  }
  return row;
}

}  // namespace

Rows layout_row(const LayoutSite& site, std::size_t operand, const Layout& layout) {
  const OpDefinition* definition = find_op(site.op.name);
  if (definition && layout.is_flat()) return row_of_range(*definition, site, operand, layout);
  if (!definition || !definition->layout || !is_possible(site.operands[operand], layout, site.members)) return std::nullopt;
  return definition->layout(site, operand, layout);
}

Rows flat_row(const Graph& graph, const Op& op, std::size_t operand) {
  const std::vector<TensorType> operands = types_of(graph, op.operands), results = types_of(graph, op.results);
  return layout_row({op, operands, results}, operand, kFlat);
}

Rows layout_row_of_result(const LayoutSite& site, std::size_t result, const Layout& split) {
  const OpDefinition* definition = find_op(site.op.name);
  if (!definition || !definition->layout_result || !is_possible(site.results[result], split, site.members)) return std::nullopt;
  return definition->layout_result(site, result, split);
}

Rows row_of_terms(const LayoutSite& site, std::span<const Layout> from) {
  const bool sums_scalars = site.op.name == "add_n" && site.results[0].shape.empty();
  const bool some = std::ranges::any_of(from, &Layout::is_term), all = std::ranges::all_of(from, &Layout::is_term);
  if (from.empty() || !(sums_scalars ? some : all && is_linear(site.op))) return std::nullopt;
  return LayoutRow{{from.begin(), from.end()}, std::vector<Layout>(site.results.size(), kTerm)};
}

bool converts_alike(const LayoutSite& site, const LayoutRow& row, std::span<const Layout> from) {
  if (std::ranges::none_of(row.results, &Layout::is_term)) return true;
  const std::vector<ValueId> read = local_op(site, row, 1).operands;
  for (std::size_t i = 0; i < from.size(); ++i)
    if (std::ranges::find(read, site.op.operands[i]) == read.end() && from[i] != row.operands[i]) return false;
  return true;
}

Op local_op(const LayoutSite& site, const LayoutRow& row, std::int64_t member) {
  Op local = site.op;
  const OpDefinition* definition = find_op(site.op.name);
  if (!definition || !definition->local) return local;
  std::vector<TensorType> operands, results;
  for (std::size_t i = 0; i < site.operands.size(); ++i)
    operands.push_back(local_type(site.operands[i], row.operands[i], site.members, member));
  for (std::size_t i = 0; i < site.results.size(); ++i)
    results.push_back(local_type(site.results[i], row.results[i], site.members, member));
  definition->local({site, row, member, operands, results}, local);
  return local;
}

Op local_op_by_places(const Graph& graph, const Op& op, const LayoutRow& row, std::int64_t members, std::int64_t member) {
  const std::vector<TensorType> operands = types_of(graph, op.operands), results = types_of(graph, op.results);
  Op numbered = op;
  for (std::size_t i = 0; i < op.operands.size(); ++i) numbered.operands[i] = ValueId(i);
  return local_op({numbered, operands, results, members}, row, member);
}

bool is_linear(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  const Linearity linear = definition ? definition->linear : Linearity::none;
  if (linear == Linearity::of_tensors) return !op.attributes.contains("other");
  if (linear == Linearity::of_number) return op.attributes.contains("other");
  return linear == Linearity::all;
}

Rows row_by_numbers(const DimNumbers& numbers, const LayoutSite& site, std::size_t operand, const Layout& split) {
  const int number = numbers.operands[operand][static_cast<std::size_t>(split.dim)];
  if (number == kNeverCut) return std::nullopt;
  return row_of_number(numbers, site, number, site.operands[operand].shape[split.dim], split);
}

Rows row_by_numbers_of_result(const DimNumbers& numbers, const LayoutSite& site, std::size_t result, const Layout& split) {
  const int number = numbers.results[result][static_cast<std::size_t>(split.dim)];
  if (number == kNeverCut) return std::nullopt;
  LayoutRow row = row_of_number(numbers, site, number, site.results[result].shape[split.dim], split);
  const bool some = std::any_of(row.operands.begin(), row.operands.end(), [](const Layout& layout) { return layout.is_split(); });
  return some ? std::nullopt : Rows(std::move(row));
}

DimNumbers numbers_of(std::string_view names, const LayoutSite& site) {
  const std::size_t arrow = names.find("->");
  return {numbers_of_all(names.substr(0, arrow), site.operands), numbers_of_all(names.substr(arrow + 2), site.results)};
}

DimNumbers all_dims_but_one(const LayoutSite& site) {
  DimNumbers numbers = numbers_of("*->*", site);
  const std::size_t rank = site.operands[0].shape.size(), dim = dim_attribute(site.op, site.operands, "dim", rank);
  for (std::vector<int>& of : numbers.operands) of[dim] = kNeverCut;
  for (std::vector<int>& of : numbers.results) of[dim] = kNeverCut;
  return numbers;
}

void local_bias(const LocalSite& site, Op& local) {
  if (site.row.results[0].is_term() && site.member > 0 && site.operands.size() == 3) local.operands.pop_back();
}

}  // namespace penstock
