// Names of pieces of state tensors: a device that holds a range of the state "w" alone has a part named "w[begin:end]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The elements begin <= i < end of the flattened, row-major tensor; a part that holds them is one-dimensional. Never empty.
struct Piece {
  std::string tensor;
  std::int64_t begin = 0, end = -1;  // -1: whole, of whatever shape

  bool whole() const { return end < 0; }
};

std::string piece_name(std::string_view tensor, std::int64_t begin, std::int64_t end);

// What a state's name means. piece_name() of a result that is not whole gives the name back. Throws Error for a name that ends in
// "[...:...]" and is no piece's: an empty or reversed range, numbers in another form, a piece of a piece, no tensor.
Piece parse_piece(std::string_view name);

// Elements begin <= i < end of a tensor, taken from the piece of this index.
struct Cut {
  std::size_t piece = 0;
  std::int64_t begin = 0, end = 0;
};
// The elements begin <= i < end, in order, each from one of the pieces of one tensor, which come in any order and may overlap. Ends at the
// first element that none has.
std::vector<Cut> cover(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end);
// Behind the last element that any has; 0 of none.
std::int64_t end_of(const std::vector<Piece>& pieces);
// The range of the first elements that none of the pieces has although one has later ones: "[4:6]"; empty where there is no such gap.
std::string gap_in(const std::vector<Piece>& pieces);

}  // namespace penstock
