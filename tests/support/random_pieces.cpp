// SPDX-License-Identifier: Apache-2.0
#include "support/random_pieces.h"

#include <numeric>

namespace penstock::test {
namespace {

std::int64_t random_divisor(Random& random, std::int64_t of) {
  std::int64_t divisor = 0;
  while (divisor == 0 || of % divisor != 0) divisor = draw(random, 1, static_cast<int>(of));
  return divisor;
}

// The elements whose place in their block of the dim is one of the member's.
std::vector<std::int64_t> split_elements(const KnownPiece& whole, const Layout& split, const LayoutRange& range) {
  const auto dim = static_cast<std::size_t>(split.dim);
  const std::int64_t block = whole.shape[dim] / split.outer;
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < whole.elements.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) / inner % whole.shape[dim] % block;
    if (range.begin <= place && place < range.end) out.push_back(whole.elements[i]);
  }
  return out;
}

void split_among_members(Random& random, const KnownPiece& whole, std::vector<KnownPiece>& out) {
  const int dim = draw(random, 0, static_cast<int>(whole.shape.size()) - 1), members = draw(random, 1, 4);
  const std::int64_t size = whole.shape[static_cast<std::size_t>(dim)], outer = random_divisor(random, size);
  const Layout split = split_layout(dim, outer, random_divisor(random, size / outer), members);
  for (int m = 0; m < members; ++m) {
    const LayoutRange range = range_of(split, size / outer, members, m);
    if (range.size() == 0) continue;
    KnownPiece part = whole;
    part.piece.cuts.push_back(cut_of(split, whole.shape, members, m));
    part.shape = local_type({DType::f32, whole.shape}, split, members, m).shape;
    part.elements = split_elements(whole, split, range);
    out.push_back(std::move(part));
  }
}

void cut_in_ranges(Random& random, const KnownPiece& whole, std::vector<KnownPiece>& out) {
  const std::int64_t elements = std::ssize(whole.elements);
  for (std::int64_t begin = 0; begin < elements;) {
    const std::int64_t end = begin + draw(random, 1, static_cast<int>(elements - begin));
    KnownPiece part{whole.piece, {end - begin}, {whole.elements.begin() + begin, whole.elements.begin() + end}};
    part.piece.cuts.push_back({begin, end});
    out.push_back(std::move(part));
    begin = end;
  }
}

}  // namespace

Shape random_sizes(Random& random) {
  Shape shape;
  for (int left = draw(random, 1, 3); left > 0; --left) shape.push_back(draw(random, 1, 8));
  return shape;
}

std::vector<KnownPiece> random_pieces(Random& random, const std::string& tensor, const Shape& shape) {
  KnownPiece whole{{tensor}, shape, {}};
  whole.elements.resize(static_cast<std::size_t>(TensorType{DType::f32, shape}.elements()));
  std::iota(whole.elements.begin(), whole.elements.end(), 0);
  std::vector<KnownPiece> pieces = {whole};
  const auto again = [&](double probability, auto&& cut) {
    std::vector<KnownPiece> next;
    for (const KnownPiece& piece : pieces)
      if (coin(random, probability))
        cut(random, piece, next);
      else
        next.push_back(piece);
    pieces = std::move(next);
  };
  again(0.8, split_among_members);
  again(0.4, split_among_members);
  again(0.5, cut_in_ranges);
  return pieces;
}

}  // namespace penstock::test
