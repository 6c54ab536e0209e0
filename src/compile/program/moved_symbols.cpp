// SPDX-License-Identifier: Apache-2.0
#include "program/moved_symbols.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock::checks {
namespace {

constexpr std::size_t kMostRuns = 1 << 22;  // of one value

bool moves(const Op& op) {
  if (op.name == "slice") return attribute_or(op, "step", std::int64_t{1}) == 1 && attribute_or(op, "start", std::int64_t{0}) >= 0;
  return op.name == "cat" || op.name == "reshape";
}

// The product of the sizes of the dims begin <= d < end.
std::int64_t product(const Shape& shape, std::size_t begin, std::size_t end) {
  std::int64_t out = 1;
  for (std::size_t d = begin; d < end; ++d) out *= shape[d];
  return out;
}

}  // namespace

bool MovedSymbols::moves_only(const Graph& graph) {
  return std::ranges::all_of(graph.ops, moves);
}

void MovedSymbols::append(Elements& to, Symbol of, std::int64_t from, std::int64_t count) {
  if (count == 0) return;
  if (to.size() == kMostRuns)
    throw Error(concat("a piece of a state has more than ", kMostRuns, " rows"), {}, "split it along another dim, so that it can be moved");
  const std::int64_t begin = to.empty() ? 0 : to.back().end;
  if (!to.empty() && to.back().of == of) {
    const std::int64_t first = to.size() > 1 ? to[to.size() - 2].end : 0;
    if (to.back().from + begin - first == from) {
      to.back().end += count;
      return;
    }
  }
  to.push_back({of, from, begin + count});
}

void MovedSymbols::append(Elements& to, const Elements& from, std::int64_t begin, std::int64_t count) {
  auto run = std::ranges::upper_bound(from, begin, {}, &Run::end);
  for (std::int64_t at = begin; at < begin + count; ++run) {
    const std::int64_t first = run == from.begin() ? 0 : std::prev(run)->end, end = std::min(run->end, begin + count);
    append(to, run->of, run->from + at - first, end - at);
    at = end;
  }
}

MovedSymbols::Elements MovedSymbols::elements_of(Symbol symbol, std::int64_t count) {
  if (const auto made = made_.find(symbol); made != made_.end()) return made->second;
  whole_.emplace(symbol, count);
  Elements out;
  append(out, symbol, 0, count);
  return out;
}

Symbol MovedSymbols::symbol_of(Elements elements) {
  if (elements.size() == 1 && elements[0].from == 0 && whole_.at(elements[0].of) == elements[0].end) return elements[0].of;
  Hash hash;
  hash.add(mix(Origin::elements));
  for (const Run& run : elements) {
    hash.add(run.of);
    hash.add(static_cast<std::uint64_t>(run.from));
    hash.add(static_cast<std::uint64_t>(run.end));
  }
  made_.emplace(hash.value(), std::move(elements));
  return hash.value();
}

Symbol MovedSymbols::of_piece(Symbol tensor, std::int64_t elements, const Piece& piece) {
  whole_.emplace(tensor, elements);
  Elements out;
  for_each_run(piece, elements, [&](const PieceRun& run) { append(out, tensor, run.begin, run.size()); });
  return symbol_of(std::move(out));
}

// In row-major order: rows of the operands' parts, each behind that of the operand before.
MovedSymbols::Elements MovedSymbols::result_of(const Graph& graph, const Op& op, const IdVector<ValueId, Elements>& values) const {
  if (op.name == "reshape") return values[op.operands[0]];
  const Shape& shape = graph.type(op.results[0]).shape;
  const std::int64_t given = attribute<std::int64_t>(op, "dim");
  const std::size_t dim = static_cast<std::size_t>(given < 0 ? given + std::ssize(shape) : given);
  const std::int64_t rows = product(shape, 0, dim), inner = product(shape, dim + 1, shape.size());
  const bool slices = op.name == "slice";
  const std::int64_t start = slices ? attribute_or(op, "start", std::int64_t{0}) * inner : 0;
  Elements out;
  for (std::int64_t row = 0; row < rows; ++row)
    for (const ValueId operand : op.operands) {
      const std::int64_t row_size = graph.type(operand).shape[dim] * inner;
      append(out, values[operand], row * row_size + start, slices ? shape[dim] * inner : row_size);
    }
  return out;
}

void MovedSymbols::run(const Graph& graph, std::span<const Symbol> inputs, std::vector<Symbol>& outputs) {
  invariant(inputs.size() == graph.inputs.size(), "a run has the inputs of its task");
  IdVector<ValueId, Elements> values(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i]] = elements_of(inputs[i], graph.type(graph.inputs[i]).elements());
  for (const Op& op : graph.ops) values[op.results[0]] = result_of(graph, op, values);
  outputs.clear();
  for (const ValueId output : graph.outputs) outputs.push_back(symbol_of(values[output]));
}

bool MovedSymbols::agree(const Piece& a, Symbol in_a, const Piece& b, Symbol in_b, std::int64_t elements) {
  const Elements of_a = elements_of(in_a, penstock::elements_of(a, elements)), of_b = elements_of(in_b, penstock::elements_of(b, elements));
  for (std::int64_t from = 0;;) {
    const PieceRun run_a = run_from(a, elements, from), run_b = run_from(b, elements, from);
    if (run_a.size() == 0 || run_b.size() == 0) return true;
    from = std::max(run_a.begin, run_b.begin);
    const std::int64_t count = std::min(run_a.end, run_b.end) - from;
    if (count <= 0) continue;
    Elements there, here;
    append(there, of_a, run_a.at + from - run_a.begin, count);
    append(here, of_b, run_b.at + from - run_b.begin, count);
    if (there != here) return false;
    from += count;
  }
}

}  // namespace penstock::checks
