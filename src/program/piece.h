// Names of pieces of state tensors. A device that holds only a range of the state "w" has a part named "w[begin:end]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The elements begin <= i < end of the flattened, row-major tensor; a part that holds a piece is one-dimensional. A piece is never empty.
struct Piece {
  std::string tensor;
  std::int64_t begin = 0, end = -1;  // end -1: the whole tensor, in its own shape

  bool whole() const { return end < 0; }
};

std::string piece_name(std::string_view tensor, std::int64_t begin, std::int64_t end);

// Reads a state's name. piece_name() gives the name of a piece that is not whole back. Throws Error for a name that ends in "[...:...]" and
// is no piece's: an empty or reversed range, numbers in another form, a piece of a piece, no tensor.
Piece parse_piece(std::string_view name);

// Elements begin <= i < end of a tensor, taken from the piece with this index.
struct Cut {
  std::size_t piece = 0;
  std::int64_t begin = 0, end = 0;
};
// Covers the elements begin <= i < end, in order, each from one of the pieces of one tensor. The pieces come in any order and may overlap.
// Stops at the first element that no piece has.
std::vector<Cut> cover(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end);
// One more than the last element that any piece has; 0 without pieces.
std::int64_t end_of(const std::vector<Piece>& pieces);
// The first range of elements that no piece has although one has later ones, "[4:6]"; empty where there is no such gap.
std::string gap_in(const std::vector<Piece>& pieces);

}  // namespace penstock
