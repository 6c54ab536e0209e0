// SPDX-License-Identifier: Apache-2.0
// Symbols of values that are made of others' elements by moving them alone: equal elements in equal order have one symbol, however they
// came there. With these a state in pieces can be compared with the same state in other pieces.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "penstock/graph.h"
#include "program/piece.h"
#include "program/symbol.h"

namespace penstock::checks {

class MovedSymbols {
 public:
  // Whether the graph's ops do nothing but move elements: slices without a step, cats and reshapes.
  static bool moves_only(const Graph& graph);

  // Notes that a symbol stands for all of a tensor of so many elements, and gives that of a piece of it.
  Symbol of_piece(Symbol tensor, std::int64_t elements, const Piece& piece);
  // Computes the outputs' symbols of a graph that moves_only(), from its inputs'.
  void run(const Graph& graph, std::span<const Symbol> inputs, std::vector<Symbol>& outputs);
  // Whether what has two pieces of a tensor of so many elements is alike where these have the same elements. The symbols are of their
  // contents.
  bool agree(const Piece& a, Symbol in_a, const Piece& b, Symbol in_b, std::int64_t elements);

 private:
  // Elements of what has the symbol `of`, from `from` on. They end at `end` among those of the value that is made of them.
  struct Run {
    Symbol of;
    std::int64_t from, end;
    bool operator==(const Run&) const = default;
  };
  using Elements = std::vector<Run>;  // of one value, in order; no two could be one

  static void append(Elements& to, Symbol of, std::int64_t from, std::int64_t count);
  static void append(Elements& to, const Elements& from, std::int64_t begin, std::int64_t count);
  Elements elements_of(Symbol symbol, std::int64_t count);
  Symbol symbol_of(Elements elements);
  Elements result_of(const Graph& graph, const Op& op, const IdVector<ValueId, Elements>& values) const;

  std::unordered_map<Symbol, Elements> made_;       // what is not all of another value, in order
  std::unordered_map<Symbol, std::int64_t> whole_;  // the elements of the others
};

}  // namespace penstock::checks
