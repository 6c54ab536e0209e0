// SPDX-License-Identifier: Apache-2.0
// Names of pieces of state tensors. A device that holds only elements begin <= i < end of the state "w" has a part named "w[begin:end]";
// one that holds 64 of the 128 columns of "w" has "w[0:64/128]", and one that holds a range of these "w[0:64/128][0:1000]".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/layout.h"

namespace penstock {

// Elements of a sequence, in its order: those with begin <= i < end, or, with a stride, with begin <= i % stride < end. A stride divides
// the sequence.
struct Cut {
  std::int64_t begin = 0, end = 0;
  std::int64_t stride = 0;  // 0: none

  std::int64_t size() const { return end - begin; }
  bool operator==(const Cut&) const = default;
};

// The first cut is of the flattened, row-major tensor, each other one of what the cuts before it leave. So the piece's elements ascend in
// the tensor. A part whose last cut is a range is one-dimensional; one whose last cut has a stride has a shape of its own, whose row-major
// order is the piece's. A piece is never empty.
struct Piece {
  std::string tensor;
  std::vector<Cut> cuts = {};

  bool whole() const { return cuts.empty(); }  // the whole tensor, in its own shape
  bool is_strided() const;                     // whether any cut has a stride
  bool operator==(const Piece&) const = default;
};

std::string piece_name(const Piece& piece);
// The name of a piece of what has this name, a tensor or a piece of one.
std::string piece_name(std::string_view name, const Cut& cut);
std::string piece_name(std::string_view name, std::int64_t begin, std::int64_t end);
// Reads a state's name; piece_name() gives it back. Throws Error for a name that ends in "[...:...]" and is no piece's: an empty or
// reversed range, one beyond the stride or what it is cut from, numbers in another form, no tensor.
Piece parse_piece(std::string_view name);
// Returns the cut that gives a member its part of a split tensor; the member has some of it.
Cut cut_of(const Layout& split, const Shape& shape, std::int64_t members, std::int64_t member);

// Returns how many of the tensor's first `elements` elements are in the piece.
std::int64_t elements_of(const Piece& piece, std::int64_t elements);
// The fewest elements that the tensor can have where the piece has `held`. Where the last cut is a range, whatever `held` is.
std::int64_t least_elements(const Piece& piece, std::int64_t held);
// Whether a tensor of so many elements has all of the piece, and `held` are the piece's elements.
bool fits(const Piece& piece, std::int64_t elements, std::int64_t held);

// Elements begin <= i < end of the tensor, which lie one after the other in the piece too, there from `at` on.
struct PieceRun {
  std::int64_t begin = 0, end = 0;
  std::int64_t at = 0;

  std::int64_t size() const { return end - begin; }
};
// The piece's first run at or behind the element `from` of a tensor of `elements`; empty, at the tensor's end: there is none.
PieceRun run_from(const Piece& piece, std::int64_t elements, std::int64_t from);
// Does act(run) for all runs, ascending.
template <class Act>
void for_each_run(const Piece& piece, std::int64_t elements, const Act& act) {
  for (PieceRun run = run_from(piece, elements, 0); run.size() > 0; run = run_from(piece, elements, run.end)) act(run);
}

// Elements of a wanted piece, from `to` on there, that the piece with this index has, from `from` on.
struct PieceCopy {
  std::size_t piece = 0;
  std::int64_t from = 0, to = 0, count = 0;
};
// Covers the wanted piece of a tensor of `elements`, in order, each element from one of the pieces. The pieces come in any order and may
// overlap. Stops at the first element that no piece has.
std::vector<PieceCopy> cover(const std::vector<Piece>& pieces, const Piece& wanted, std::int64_t elements);
// The first range of the tensor's elements that no piece has, "[4:6]"; empty: there is none.
std::string gap_in(const std::vector<Piece>& pieces, std::int64_t elements);

// Elements that no piece has (before == piece), or that piece `piece` has although piece `before` has them.
struct Misfit {
  std::int64_t begin = 0, end = 0;
  std::size_t before = 0, piece = 0;
};
// The first place where not exactly one of the pieces has an element.
std::optional<Misfit> find_misfit(const std::vector<Piece>& pieces, std::int64_t elements);
// Whether two pieces have an element in common.
bool overlap(const Piece& a, const Piece& b, std::int64_t elements);

}  // namespace penstock
