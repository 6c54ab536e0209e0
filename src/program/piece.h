// Names of pieces of state tensors: a device that holds a range of the state "w" alone has a part named "w[begin:end]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace penstock
