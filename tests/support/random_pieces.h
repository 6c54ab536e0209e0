// SPDX-License-Identifier: Apache-2.0
// Tensors in pieces as the members of a mesh hold them, each with its elements found without the code under test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/piece.h"
#include "support/random_schedule.h"

namespace penstock::test {

struct KnownPiece {
  Piece piece;
  Shape shape;                         // of the part that holds it
  std::vector<std::int64_t> elements;  // of the flattened tensor, in the piece's order
};

// Up to three dims of up to eight.
Shape random_sizes(Random& random);
// Pieces that tile the tensor: split along a random dim among up to four members, in blocks, then maybe again, then maybe each in ranges.
std::vector<KnownPiece> random_pieces(Random& random, const std::string& tensor, const Shape& shape);

}  // namespace penstock::test
